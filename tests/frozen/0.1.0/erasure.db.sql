PRAGMA application_id = 1835366508;
PRAGMA user_version = 1;
BEGIN TRANSACTION;
CREATE TABLE cuts (subject TEXT NOT NULL, cut BLOB NOT NULL, PRIMARY KEY (subject, cut)) WITHOUT ROWID;
INSERT INTO "cuts" VALUES('aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa',X'6120637574');
CREATE TABLE items (
    subject TEXT NOT NULL,
    item BLOB NOT NULL,
    at REAL NOT NULL,
    PRIMARY KEY (subject, item)
) WITHOUT ROWID
;
INSERT INTO "items" VALUES('aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa',X'78787878787878787878787878787878',12.5);
CREATE TABLE jobs (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    subject TEXT NOT NULL,
    body BLOB NOT NULL,
    shut INTEGER NOT NULL,
    open INTEGER NOT NULL
);
INSERT INTO "jobs" VALUES(1,'11111111111111111111111111111111','aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa',X'7768617420697320746F20626520646F6E65',1,1);
CREATE TABLE keys (id INTEGER PRIMARY KEY, key BLOB NOT NULL);
INSERT INTO "keys" VALUES(1,X'3E7DA328298D6C9F65EA62CCD7852AA5620CDD81B6B6D300447CCCDF4994416E');
CREATE INDEX jobs_shut ON jobs (subject) WHERE shut = 1;
CREATE INDEX jobs_open ON jobs (number) WHERE open = 1;
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('jobs',1);
COMMIT;
