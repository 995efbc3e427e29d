PRAGMA application_id = 1835366515;
PRAGMA user_version = 1;
BEGIN TRANSACTION;
CREATE TABLE changes (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    owner TEXT NOT NULL,
    consent TEXT NOT NULL,
    at REAL NOT NULL,
    by TEXT NOT NULL
);
INSERT INTO "changes" VALUES(1,'e4ed000f817129c804bee2e302422dc391da7c40ce239d121d70257ae88a75d9','recall_only',1793491200.0,'ann');
CREATE INDEX changes_by_owner ON changes (owner, number)
;
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('changes',1);
COMMIT;
