import datetime

from google.api import annotations_pb2 as _annotations_pb2
from google.protobuf import field_mask_pb2 as _field_mask_pb2
from google.protobuf import struct_pb2 as _struct_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Memory(_message.Message):
    __slots__ = ("id", "user_id", "tenant_id", "project_id", "type", "content", "source", "importance", "access_count", "created_at", "updated_at", "last_accessed_at", "expires_at", "superseded_by", "session_id", "origin", "metadata", "state", "role", "seq", "valid_from", "valid_to", "history", "etag", "trust")
    ID_FIELD_NUMBER: _ClassVar[int]
    USER_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_ID_FIELD_NUMBER: _ClassVar[int]
    PROJECT_ID_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    IMPORTANCE_FIELD_NUMBER: _ClassVar[int]
    ACCESS_COUNT_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    UPDATED_AT_FIELD_NUMBER: _ClassVar[int]
    LAST_ACCESSED_AT_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_FIELD_NUMBER: _ClassVar[int]
    SUPERSEDED_BY_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    VALID_FROM_FIELD_NUMBER: _ClassVar[int]
    VALID_TO_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    ETAG_FIELD_NUMBER: _ClassVar[int]
    TRUST_FIELD_NUMBER: _ClassVar[int]
    id: str
    user_id: str
    tenant_id: str
    project_id: str
    type: str
    content: str
    source: str
    importance: float
    access_count: int
    created_at: _timestamp_pb2.Timestamp
    updated_at: _timestamp_pb2.Timestamp
    last_accessed_at: _timestamp_pb2.Timestamp
    expires_at: _timestamp_pb2.Timestamp
    superseded_by: str
    session_id: str
    origin: str
    metadata: _struct_pb2.Struct
    state: str
    role: str
    seq: int
    valid_from: _timestamp_pb2.Timestamp
    valid_to: _timestamp_pb2.Timestamp
    history: _containers.RepeatedCompositeFieldContainer[Memory]
    etag: str
    trust: str
    def __init__(self, id: _Optional[str] = ..., user_id: _Optional[str] = ..., tenant_id: _Optional[str] = ..., project_id: _Optional[str] = ..., type: _Optional[str] = ..., content: _Optional[str] = ..., source: _Optional[str] = ..., importance: _Optional[float] = ..., access_count: _Optional[int] = ..., created_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., updated_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., last_accessed_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., expires_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., superseded_by: _Optional[str] = ..., session_id: _Optional[str] = ..., origin: _Optional[str] = ..., metadata: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., state: _Optional[str] = ..., role: _Optional[str] = ..., seq: _Optional[int] = ..., valid_from: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., valid_to: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., history: _Optional[_Iterable[_Union[Memory, _Mapping]]] = ..., etag: _Optional[str] = ..., trust: _Optional[str] = ...) -> None: ...

class StoreMemoryRequest(_message.Message):
    __slots__ = ("user_id", "content", "type", "project_id", "session_id", "importance", "expires_at", "metadata", "on_duplicate", "request_id", "extract")
    USER_ID_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    PROJECT_ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    IMPORTANCE_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    ON_DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    EXTRACT_FIELD_NUMBER: _ClassVar[int]
    user_id: str
    content: str
    type: str
    project_id: str
    session_id: str
    importance: float
    expires_at: _timestamp_pb2.Timestamp
    metadata: _struct_pb2.Struct
    on_duplicate: str
    request_id: str
    extract: bool
    def __init__(self, user_id: _Optional[str] = ..., content: _Optional[str] = ..., type: _Optional[str] = ..., project_id: _Optional[str] = ..., session_id: _Optional[str] = ..., importance: _Optional[float] = ..., expires_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., metadata: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., on_duplicate: _Optional[str] = ..., request_id: _Optional[str] = ..., extract: _Optional[bool] = ...) -> None: ...

class StoreMemoryResponse(_message.Message):
    __slots__ = ("memory", "decision", "extracted")
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    DECISION_FIELD_NUMBER: _ClassVar[int]
    EXTRACTED_FIELD_NUMBER: _ClassVar[int]
    memory: Memory
    decision: str
    extracted: _containers.RepeatedCompositeFieldContainer[Memory]
    def __init__(self, memory: _Optional[_Union[Memory, _Mapping]] = ..., decision: _Optional[str] = ..., extracted: _Optional[_Iterable[_Union[Memory, _Mapping]]] = ...) -> None: ...

class GetMemoryRequest(_message.Message):
    __slots__ = ("id", "user_id", "history")
    ID_FIELD_NUMBER: _ClassVar[int]
    USER_ID_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    id: str
    user_id: str
    history: bool
    def __init__(self, id: _Optional[str] = ..., user_id: _Optional[str] = ..., history: _Optional[bool] = ...) -> None: ...

class ListMemoriesRequest(_message.Message):
    __slots__ = ("user_id", "project_id", "type", "session_id", "source", "state", "created_after", "created_before", "text", "limit", "page_token", "order")
    USER_ID_FIELD_NUMBER: _ClassVar[int]
    PROJECT_ID_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    CREATED_AFTER_FIELD_NUMBER: _ClassVar[int]
    CREATED_BEFORE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    user_id: str
    project_id: str
    type: _containers.RepeatedScalarFieldContainer[str]
    session_id: str
    source: _containers.RepeatedScalarFieldContainer[str]
    state: _containers.RepeatedScalarFieldContainer[str]
    created_after: _timestamp_pb2.Timestamp
    created_before: _timestamp_pb2.Timestamp
    text: str
    limit: int
    page_token: str
    order: str
    def __init__(self, user_id: _Optional[str] = ..., project_id: _Optional[str] = ..., type: _Optional[_Iterable[str]] = ..., session_id: _Optional[str] = ..., source: _Optional[_Iterable[str]] = ..., state: _Optional[_Iterable[str]] = ..., created_after: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., created_before: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., text: _Optional[str] = ..., limit: _Optional[int] = ..., page_token: _Optional[str] = ..., order: _Optional[str] = ...) -> None: ...

class ListMemoriesResponse(_message.Message):
    __slots__ = ("memories", "total", "limit", "next_page_token")
    MEMORIES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    memories: _containers.RepeatedCompositeFieldContainer[Memory]
    total: int
    limit: int
    next_page_token: str
    def __init__(self, memories: _Optional[_Iterable[_Union[Memory, _Mapping]]] = ..., total: _Optional[int] = ..., limit: _Optional[int] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class SearchMemoriesRequest(_message.Message):
    __slots__ = ("user_id", "query", "project_id", "type", "limit", "threshold", "as_of")
    USER_ID_FIELD_NUMBER: _ClassVar[int]
    QUERY_FIELD_NUMBER: _ClassVar[int]
    PROJECT_ID_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    AS_OF_FIELD_NUMBER: _ClassVar[int]
    user_id: str
    query: str
    project_id: str
    type: _containers.RepeatedScalarFieldContainer[str]
    limit: int
    threshold: float
    as_of: _timestamp_pb2.Timestamp
    def __init__(self, user_id: _Optional[str] = ..., query: _Optional[str] = ..., project_id: _Optional[str] = ..., type: _Optional[_Iterable[str]] = ..., limit: _Optional[int] = ..., threshold: _Optional[float] = ..., as_of: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class SearchMemoriesResponse(_message.Message):
    __slots__ = ("results", "total", "limit")
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[FoundMemory]
    total: int
    limit: int
    def __init__(self, results: _Optional[_Iterable[_Union[FoundMemory, _Mapping]]] = ..., total: _Optional[int] = ..., limit: _Optional[int] = ...) -> None: ...

class FoundMemory(_message.Message):
    __slots__ = ("memory", "relevance")
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    RELEVANCE_FIELD_NUMBER: _ClassVar[int]
    memory: Memory
    relevance: float
    def __init__(self, memory: _Optional[_Union[Memory, _Mapping]] = ..., relevance: _Optional[float] = ...) -> None: ...

class UpdateMemoryRequest(_message.Message):
    __slots__ = ("id", "memory", "update_mask", "user_id", "request_id")
    ID_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    UPDATE_MASK_FIELD_NUMBER: _ClassVar[int]
    USER_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    memory: Memory
    update_mask: _field_mask_pb2.FieldMask
    user_id: str
    request_id: str
    def __init__(self, id: _Optional[str] = ..., memory: _Optional[_Union[Memory, _Mapping]] = ..., update_mask: _Optional[_Union[_field_mask_pb2.FieldMask, _Mapping]] = ..., user_id: _Optional[str] = ..., request_id: _Optional[str] = ...) -> None: ...

class RestoreMemoryRequest(_message.Message):
    __slots__ = ("id", "user_id", "request_id")
    ID_FIELD_NUMBER: _ClassVar[int]
    USER_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    user_id: str
    request_id: str
    def __init__(self, id: _Optional[str] = ..., user_id: _Optional[str] = ..., request_id: _Optional[str] = ...) -> None: ...

class ForgetMemoryRequest(_message.Message):
    __slots__ = ("id", "user_id", "request_id")
    ID_FIELD_NUMBER: _ClassVar[int]
    USER_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    user_id: str
    request_id: str
    def __init__(self, id: _Optional[str] = ..., user_id: _Optional[str] = ..., request_id: _Optional[str] = ...) -> None: ...

class ForgetMemoryResponse(_message.Message):
    __slots__ = ("success", "message", "receipt")
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    success: bool
    message: str
    receipt: ForgetReceipt
    def __init__(self, success: _Optional[bool] = ..., message: _Optional[str] = ..., receipt: _Optional[_Union[ForgetReceipt, _Mapping]] = ...) -> None: ...

class ForgetMemoriesRequest(_message.Message):
    __slots__ = ("user_id", "project_id", "type", "session_id", "before", "memory_ids", "query", "dry_run", "confirmation_token", "request_id")
    USER_ID_FIELD_NUMBER: _ClassVar[int]
    PROJECT_ID_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    MEMORY_IDS_FIELD_NUMBER: _ClassVar[int]
    QUERY_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    CONFIRMATION_TOKEN_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    user_id: str
    project_id: str
    type: _containers.RepeatedScalarFieldContainer[str]
    session_id: str
    before: _timestamp_pb2.Timestamp
    memory_ids: _containers.RepeatedScalarFieldContainer[str]
    query: str
    dry_run: bool
    confirmation_token: str
    request_id: str
    def __init__(self, user_id: _Optional[str] = ..., project_id: _Optional[str] = ..., type: _Optional[_Iterable[str]] = ..., session_id: _Optional[str] = ..., before: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., memory_ids: _Optional[_Iterable[str]] = ..., query: _Optional[str] = ..., dry_run: _Optional[bool] = ..., confirmation_token: _Optional[str] = ..., request_id: _Optional[str] = ...) -> None: ...

class ForgetMemoriesResponse(_message.Message):
    __slots__ = ("success", "message", "receipt", "would_forget", "total", "confirmation_token", "confirmation_expires_at")
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    WOULD_FORGET_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    CONFIRMATION_TOKEN_FIELD_NUMBER: _ClassVar[int]
    CONFIRMATION_EXPIRES_AT_FIELD_NUMBER: _ClassVar[int]
    success: bool
    message: str
    receipt: ForgetReceipt
    would_forget: _containers.RepeatedCompositeFieldContainer[Memory]
    total: int
    confirmation_token: str
    confirmation_expires_at: _timestamp_pb2.Timestamp
    def __init__(self, success: _Optional[bool] = ..., message: _Optional[str] = ..., receipt: _Optional[_Union[ForgetReceipt, _Mapping]] = ..., would_forget: _Optional[_Iterable[_Union[Memory, _Mapping]]] = ..., total: _Optional[int] = ..., confirmation_token: _Optional[str] = ..., confirmation_expires_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class GetForgetReceiptRequest(_message.Message):
    __slots__ = ("receipt_id", "user_id")
    RECEIPT_ID_FIELD_NUMBER: _ClassVar[int]
    USER_ID_FIELD_NUMBER: _ClassVar[int]
    receipt_id: str
    user_id: str
    def __init__(self, receipt_id: _Optional[str] = ..., user_id: _Optional[str] = ...) -> None: ...

class VerifyReceiptRequest(_message.Message):
    __slots__ = ("receipt", "user_id")
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    USER_ID_FIELD_NUMBER: _ClassVar[int]
    receipt: ForgetReceipt
    user_id: str
    def __init__(self, receipt: _Optional[_Union[ForgetReceipt, _Mapping]] = ..., user_id: _Optional[str] = ...) -> None: ...

class VerifyReceiptResponse(_message.Message):
    __slots__ = ("signature", "subject_matches", "stores")
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_MATCHES_FIELD_NUMBER: _ClassVar[int]
    STORES_FIELD_NUMBER: _ClassVar[int]
    signature: str
    subject_matches: bool
    stores: _containers.RepeatedCompositeFieldContainer[StoreLook]
    def __init__(self, signature: _Optional[str] = ..., subject_matches: _Optional[bool] = ..., stores: _Optional[_Iterable[_Union[StoreLook, _Mapping]]] = ...) -> None: ...

class StoreLook(_message.Message):
    __slots__ = ("store", "verdict", "found", "why")
    STORE_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    FOUND_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    store: str
    verdict: str
    found: int
    why: str
    def __init__(self, store: _Optional[str] = ..., verdict: _Optional[str] = ..., found: _Optional[int] = ..., why: _Optional[str] = ...) -> None: ...

class ForgetReceipt(_message.Message):
    __slots__ = ("id", "state", "scope", "subject", "accepted_at", "clean_at", "completed_at", "memories", "stores", "signed", "signature", "key_id")
    ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_AT_FIELD_NUMBER: _ClassVar[int]
    CLEAN_AT_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_AT_FIELD_NUMBER: _ClassVar[int]
    MEMORIES_FIELD_NUMBER: _ClassVar[int]
    STORES_FIELD_NUMBER: _ClassVar[int]
    SIGNED_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    state: str
    scope: str
    subject: str
    accepted_at: _timestamp_pb2.Timestamp
    clean_at: _timestamp_pb2.Timestamp
    completed_at: _timestamp_pb2.Timestamp
    memories: int
    stores: _containers.RepeatedCompositeFieldContainer[StoreErasure]
    signed: bytes
    signature: bytes
    key_id: str
    def __init__(self, id: _Optional[str] = ..., state: _Optional[str] = ..., scope: _Optional[str] = ..., subject: _Optional[str] = ..., accepted_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., clean_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., completed_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., memories: _Optional[int] = ..., stores: _Optional[_Iterable[_Union[StoreErasure, _Mapping]]] = ..., signed: _Optional[bytes] = ..., signature: _Optional[bytes] = ..., key_id: _Optional[str] = ...) -> None: ...

class StoreErasure(_message.Message):
    __slots__ = ("store", "state", "removed", "done_at", "pending_until", "note")
    STORE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    DONE_AT_FIELD_NUMBER: _ClassVar[int]
    PENDING_UNTIL_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    store: str
    state: str
    removed: int
    done_at: _timestamp_pb2.Timestamp
    pending_until: _timestamp_pb2.Timestamp
    note: str
    def __init__(self, store: _Optional[str] = ..., state: _Optional[str] = ..., removed: _Optional[int] = ..., done_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., pending_until: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., note: _Optional[str] = ...) -> None: ...

class ExportMemoriesRequest(_message.Message):
    __slots__ = ("user_id", "project_id", "resume_token")
    USER_ID_FIELD_NUMBER: _ClassVar[int]
    PROJECT_ID_FIELD_NUMBER: _ClassVar[int]
    RESUME_TOKEN_FIELD_NUMBER: _ClassVar[int]
    user_id: str
    project_id: str
    resume_token: str
    def __init__(self, user_id: _Optional[str] = ..., project_id: _Optional[str] = ..., resume_token: _Optional[str] = ...) -> None: ...

class ExportMemoriesResponse(_message.Message):
    __slots__ = ("header", "memory", "turn", "consent", "resume_token")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    TURN_FIELD_NUMBER: _ClassVar[int]
    CONSENT_FIELD_NUMBER: _ClassVar[int]
    RESUME_TOKEN_FIELD_NUMBER: _ClassVar[int]
    header: ExportHeader
    memory: Memory
    turn: ExportedTurn
    consent: ConsentChange
    resume_token: str
    def __init__(self, header: _Optional[_Union[ExportHeader, _Mapping]] = ..., memory: _Optional[_Union[Memory, _Mapping]] = ..., turn: _Optional[_Union[ExportedTurn, _Mapping]] = ..., consent: _Optional[_Union[ConsentChange, _Mapping]] = ..., resume_token: _Optional[str] = ...) -> None: ...

class ExportHeader(_message.Message):
    __slots__ = ("version", "exported_at", "memories", "user_id", "tenant_id")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    EXPORTED_AT_FIELD_NUMBER: _ClassVar[int]
    MEMORIES_FIELD_NUMBER: _ClassVar[int]
    USER_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_ID_FIELD_NUMBER: _ClassVar[int]
    version: int
    exported_at: _timestamp_pb2.Timestamp
    memories: int
    user_id: str
    tenant_id: str
    def __init__(self, version: _Optional[int] = ..., exported_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., memories: _Optional[int] = ..., user_id: _Optional[str] = ..., tenant_id: _Optional[str] = ...) -> None: ...

class ExportedTurn(_message.Message):
    __slots__ = ("id", "session_id", "project_id", "seq", "at", "asked", "answered", "state")
    ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    PROJECT_ID_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    ASKED_FIELD_NUMBER: _ClassVar[int]
    ANSWERED_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    id: str
    session_id: str
    project_id: str
    seq: int
    at: _timestamp_pb2.Timestamp
    asked: str
    answered: str
    state: str
    def __init__(self, id: _Optional[str] = ..., session_id: _Optional[str] = ..., project_id: _Optional[str] = ..., seq: _Optional[int] = ..., at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., asked: _Optional[str] = ..., answered: _Optional[str] = ..., state: _Optional[str] = ...) -> None: ...

class ImportMemoriesRequest(_message.Message):
    __slots__ = ("start", "memory")
    START_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    start: ImportStart
    memory: Memory
    def __init__(self, start: _Optional[_Union[ImportStart, _Mapping]] = ..., memory: _Optional[_Union[Memory, _Mapping]] = ...) -> None: ...

class ImportStart(_message.Message):
    __slots__ = ("user_id", "on_conflict", "dry_run")
    USER_ID_FIELD_NUMBER: _ClassVar[int]
    ON_CONFLICT_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    user_id: str
    on_conflict: str
    dry_run: bool
    def __init__(self, user_id: _Optional[str] = ..., on_conflict: _Optional[str] = ..., dry_run: _Optional[bool] = ...) -> None: ...

class ImportMemoriesResponse(_message.Message):
    __slots__ = ("added", "same", "replaced", "conflicting", "refused", "problems")
    ADDED_FIELD_NUMBER: _ClassVar[int]
    SAME_FIELD_NUMBER: _ClassVar[int]
    REPLACED_FIELD_NUMBER: _ClassVar[int]
    CONFLICTING_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    PROBLEMS_FIELD_NUMBER: _ClassVar[int]
    added: int
    same: int
    replaced: int
    conflicting: int
    refused: int
    problems: _containers.RepeatedCompositeFieldContainer[ImportProblem]
    def __init__(self, added: _Optional[int] = ..., same: _Optional[int] = ..., replaced: _Optional[int] = ..., conflicting: _Optional[int] = ..., refused: _Optional[int] = ..., problems: _Optional[_Iterable[_Union[ImportProblem, _Mapping]]] = ...) -> None: ...

class ImportProblem(_message.Message):
    __slots__ = ("index", "id", "reason", "message")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    index: int
    id: str
    reason: str
    message: str
    def __init__(self, index: _Optional[int] = ..., id: _Optional[str] = ..., reason: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class GetStatsRequest(_message.Message):
    __slots__ = ("user_id",)
    USER_ID_FIELD_NUMBER: _ClassVar[int]
    user_id: str
    def __init__(self, user_id: _Optional[str] = ...) -> None: ...

class GetStatsResponse(_message.Message):
    __slots__ = ("total", "recallable", "by_type", "by_state", "by_source", "by_age", "bytes", "backlog", "dead_letters", "oldest_at", "newest_at")
    class ByTypeEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class ByStateEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class BySourceEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class ByAgeEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    RECALLABLE_FIELD_NUMBER: _ClassVar[int]
    BY_TYPE_FIELD_NUMBER: _ClassVar[int]
    BY_STATE_FIELD_NUMBER: _ClassVar[int]
    BY_SOURCE_FIELD_NUMBER: _ClassVar[int]
    BY_AGE_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    BACKLOG_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTERS_FIELD_NUMBER: _ClassVar[int]
    OLDEST_AT_FIELD_NUMBER: _ClassVar[int]
    NEWEST_AT_FIELD_NUMBER: _ClassVar[int]
    total: int
    recallable: int
    by_type: _containers.ScalarMap[str, int]
    by_state: _containers.ScalarMap[str, int]
    by_source: _containers.ScalarMap[str, int]
    by_age: _containers.ScalarMap[str, int]
    bytes: int
    backlog: int
    dead_letters: int
    oldest_at: _timestamp_pb2.Timestamp
    newest_at: _timestamp_pb2.Timestamp
    def __init__(self, total: _Optional[int] = ..., recallable: _Optional[int] = ..., by_type: _Optional[_Mapping[str, int]] = ..., by_state: _Optional[_Mapping[str, int]] = ..., by_source: _Optional[_Mapping[str, int]] = ..., by_age: _Optional[_Mapping[str, int]] = ..., bytes: _Optional[int] = ..., backlog: _Optional[int] = ..., dead_letters: _Optional[int] = ..., oldest_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., newest_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class ExplainRecallRequest(_message.Message):
    __slots__ = ("user_id", "text", "earlier", "project_id", "type", "limit", "threshold", "force", "as_of")
    USER_ID_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    EARLIER_FIELD_NUMBER: _ClassVar[int]
    PROJECT_ID_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    AS_OF_FIELD_NUMBER: _ClassVar[int]
    user_id: str
    text: str
    earlier: _containers.RepeatedScalarFieldContainer[str]
    project_id: str
    type: _containers.RepeatedScalarFieldContainer[str]
    limit: int
    threshold: float
    force: bool
    as_of: _timestamp_pb2.Timestamp
    def __init__(self, user_id: _Optional[str] = ..., text: _Optional[str] = ..., earlier: _Optional[_Iterable[str]] = ..., project_id: _Optional[str] = ..., type: _Optional[_Iterable[str]] = ..., limit: _Optional[int] = ..., threshold: _Optional[float] = ..., force: _Optional[bool] = ..., as_of: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class ExplainRecallResponse(_message.Message):
    __slots__ = ("outcome", "gate", "query", "path", "total", "worth", "considered", "block", "kind", "notes")
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    GATE_FIELD_NUMBER: _ClassVar[int]
    QUERY_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    WORTH_FIELD_NUMBER: _ClassVar[int]
    CONSIDERED_FIELD_NUMBER: _ClassVar[int]
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    outcome: str
    gate: str
    query: str
    path: str
    total: int
    worth: float
    considered: _containers.RepeatedCompositeFieldContainer[ConsideredMemory]
    block: str
    kind: str
    notes: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, outcome: _Optional[str] = ..., gate: _Optional[str] = ..., query: _Optional[str] = ..., path: _Optional[str] = ..., total: _Optional[int] = ..., worth: _Optional[float] = ..., considered: _Optional[_Iterable[_Union[ConsideredMemory, _Mapping]]] = ..., block: _Optional[str] = ..., kind: _Optional[str] = ..., notes: _Optional[_Iterable[str]] = ...) -> None: ...

class ConsideredMemory(_message.Message):
    __slots__ = ("memory", "score", "relevance", "verdict", "features", "reasons", "since")
    class FeaturesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    RELEVANCE_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    REASONS_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    memory: Memory
    score: float
    relevance: float
    verdict: str
    features: _containers.ScalarMap[str, float]
    reasons: _containers.RepeatedScalarFieldContainer[str]
    since: str
    def __init__(self, memory: _Optional[_Union[Memory, _Mapping]] = ..., score: _Optional[float] = ..., relevance: _Optional[float] = ..., verdict: _Optional[str] = ..., features: _Optional[_Mapping[str, float]] = ..., reasons: _Optional[_Iterable[str]] = ..., since: _Optional[str] = ...) -> None: ...

class GetDecisionRequest(_message.Message):
    __slots__ = ("request_id", "user_id")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    USER_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    user_id: str
    def __init__(self, request_id: _Optional[str] = ..., user_id: _Optional[str] = ...) -> None: ...

class Decision(_message.Message):
    __slots__ = ("request_id", "at", "outcome", "path", "kind", "total", "worth", "threshold", "memories", "tokens", "stages_ms", "considered", "block")
    class StagesMsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    WORTH_FIELD_NUMBER: _ClassVar[int]
    THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    MEMORIES_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    STAGES_MS_FIELD_NUMBER: _ClassVar[int]
    CONSIDERED_FIELD_NUMBER: _ClassVar[int]
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    at: _timestamp_pb2.Timestamp
    outcome: str
    path: str
    kind: str
    total: int
    worth: float
    threshold: float
    memories: int
    tokens: int
    stages_ms: _containers.ScalarMap[str, float]
    considered: _containers.RepeatedCompositeFieldContainer[ConsideredMemory]
    block: str
    def __init__(self, request_id: _Optional[str] = ..., at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., outcome: _Optional[str] = ..., path: _Optional[str] = ..., kind: _Optional[str] = ..., total: _Optional[int] = ..., worth: _Optional[float] = ..., threshold: _Optional[float] = ..., memories: _Optional[int] = ..., tokens: _Optional[int] = ..., stages_ms: _Optional[_Mapping[str, float]] = ..., considered: _Optional[_Iterable[_Union[ConsideredMemory, _Mapping]]] = ..., block: _Optional[str] = ...) -> None: ...

class ListDecisionsRequest(_message.Message):
    __slots__ = ("user_id", "limit")
    USER_ID_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    user_id: str
    limit: int
    def __init__(self, user_id: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class ListDecisionsResponse(_message.Message):
    __slots__ = ("decisions",)
    DECISIONS_FIELD_NUMBER: _ClassVar[int]
    decisions: _containers.RepeatedCompositeFieldContainer[Decision]
    def __init__(self, decisions: _Optional[_Iterable[_Union[Decision, _Mapping]]] = ...) -> None: ...

class RateMemoryRequest(_message.Message):
    __slots__ = ("id", "rating", "user_id", "request_id")
    ID_FIELD_NUMBER: _ClassVar[int]
    RATING_FIELD_NUMBER: _ClassVar[int]
    USER_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    rating: str
    user_id: str
    request_id: str
    def __init__(self, id: _Optional[str] = ..., rating: _Optional[str] = ..., user_id: _Optional[str] = ..., request_id: _Optional[str] = ...) -> None: ...

class ListUsersRequest(_message.Message):
    __slots__ = ("tenant_id", "limit", "page_token", "quarantined")
    TENANT_ID_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    QUARANTINED_FIELD_NUMBER: _ClassVar[int]
    tenant_id: str
    limit: int
    page_token: str
    quarantined: bool
    def __init__(self, tenant_id: _Optional[str] = ..., limit: _Optional[int] = ..., page_token: _Optional[str] = ..., quarantined: _Optional[bool] = ...) -> None: ...

class ListUsersResponse(_message.Message):
    __slots__ = ("users", "total", "next_page_token")
    USERS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    users: _containers.RepeatedCompositeFieldContainer[UserEntry]
    total: int
    next_page_token: str
    def __init__(self, users: _Optional[_Iterable[_Union[UserEntry, _Mapping]]] = ..., total: _Optional[int] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class UserEntry(_message.Message):
    __slots__ = ("tenant_id", "user_id", "kind", "memories", "updated_at", "quarantined")
    TENANT_ID_FIELD_NUMBER: _ClassVar[int]
    USER_ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    MEMORIES_FIELD_NUMBER: _ClassVar[int]
    UPDATED_AT_FIELD_NUMBER: _ClassVar[int]
    QUARANTINED_FIELD_NUMBER: _ClassVar[int]
    tenant_id: str
    user_id: str
    kind: str
    memories: int
    updated_at: _timestamp_pb2.Timestamp
    quarantined: int
    def __init__(self, tenant_id: _Optional[str] = ..., user_id: _Optional[str] = ..., kind: _Optional[str] = ..., memories: _Optional[int] = ..., updated_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., quarantined: _Optional[int] = ...) -> None: ...

class GetServerStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetServerStatusResponse(_message.Message):
    __slots__ = ("waiting_turns", "oldest_waiting_at", "dead_letters", "outcomes", "outcomes_since", "canary", "store_failing_s", "users", "memories", "audit", "consents", "findings", "examined_at", "quarantined")
    class OutcomesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class ConsentsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    WAITING_TURNS_FIELD_NUMBER: _ClassVar[int]
    OLDEST_WAITING_AT_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTERS_FIELD_NUMBER: _ClassVar[int]
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    OUTCOMES_SINCE_FIELD_NUMBER: _ClassVar[int]
    CANARY_FIELD_NUMBER: _ClassVar[int]
    STORE_FAILING_S_FIELD_NUMBER: _ClassVar[int]
    USERS_FIELD_NUMBER: _ClassVar[int]
    MEMORIES_FIELD_NUMBER: _ClassVar[int]
    AUDIT_FIELD_NUMBER: _ClassVar[int]
    CONSENTS_FIELD_NUMBER: _ClassVar[int]
    FINDINGS_FIELD_NUMBER: _ClassVar[int]
    EXAMINED_AT_FIELD_NUMBER: _ClassVar[int]
    QUARANTINED_FIELD_NUMBER: _ClassVar[int]
    waiting_turns: int
    oldest_waiting_at: _timestamp_pb2.Timestamp
    dead_letters: int
    outcomes: _containers.ScalarMap[str, int]
    outcomes_since: _timestamp_pb2.Timestamp
    canary: float
    store_failing_s: float
    users: int
    memories: int
    audit: _containers.RepeatedCompositeFieldContainer[_struct_pb2.Struct]
    consents: _containers.ScalarMap[str, int]
    findings: _containers.RepeatedCompositeFieldContainer[Finding]
    examined_at: _timestamp_pb2.Timestamp
    quarantined: int
    def __init__(self, waiting_turns: _Optional[int] = ..., oldest_waiting_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., dead_letters: _Optional[int] = ..., outcomes: _Optional[_Mapping[str, int]] = ..., outcomes_since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., canary: _Optional[float] = ..., store_failing_s: _Optional[float] = ..., users: _Optional[int] = ..., memories: _Optional[int] = ..., audit: _Optional[_Iterable[_Union[_struct_pb2.Struct, _Mapping]]] = ..., consents: _Optional[_Mapping[str, int]] = ..., findings: _Optional[_Iterable[_Union[Finding, _Mapping]]] = ..., examined_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., quarantined: _Optional[int] = ...) -> None: ...

class Finding(_message.Message):
    __slots__ = ("check", "verdict", "seen", "mend")
    CHECK_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    SEEN_FIELD_NUMBER: _ClassVar[int]
    MEND_FIELD_NUMBER: _ClassVar[int]
    check: str
    verdict: str
    seen: str
    mend: str
    def __init__(self, check: _Optional[str] = ..., verdict: _Optional[str] = ..., seen: _Optional[str] = ..., mend: _Optional[str] = ...) -> None: ...

class PlanRetentionRequest(_message.Message):
    __slots__ = ("user_id",)
    USER_ID_FIELD_NUMBER: _ClassVar[int]
    user_id: str
    def __init__(self, user_id: _Optional[str] = ...) -> None: ...

class PlanRetentionResponse(_message.Message):
    __slots__ = ("memories", "retired", "merged", "erased")
    class RetiredEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    MEMORIES_FIELD_NUMBER: _ClassVar[int]
    RETIRED_FIELD_NUMBER: _ClassVar[int]
    MERGED_FIELD_NUMBER: _ClassVar[int]
    ERASED_FIELD_NUMBER: _ClassVar[int]
    memories: int
    retired: _containers.ScalarMap[str, int]
    merged: int
    erased: int
    def __init__(self, memories: _Optional[int] = ..., retired: _Optional[_Mapping[str, int]] = ..., merged: _Optional[int] = ..., erased: _Optional[int] = ...) -> None: ...

class PlanRetentionRoundRequest(_message.Message):
    __slots__ = ("page_token",)
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_token: str
    def __init__(self, page_token: _Optional[str] = ...) -> None: ...

class PlanRetentionRoundResponse(_message.Message):
    __slots__ = ("plan", "owners", "failed", "next_page_token")
    PLAN_FIELD_NUMBER: _ClassVar[int]
    OWNERS_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    plan: PlanRetentionResponse
    owners: int
    failed: int
    next_page_token: str
    def __init__(self, plan: _Optional[_Union[PlanRetentionResponse, _Mapping]] = ..., owners: _Optional[int] = ..., failed: _Optional[int] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class EndSessionRequest(_message.Message):
    __slots__ = ("user_id", "session_id")
    USER_ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    user_id: str
    session_id: str
    def __init__(self, user_id: _Optional[str] = ..., session_id: _Optional[str] = ...) -> None: ...

class EndSessionResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetConsentRequest(_message.Message):
    __slots__ = ("user_id",)
    USER_ID_FIELD_NUMBER: _ClassVar[int]
    user_id: str
    def __init__(self, user_id: _Optional[str] = ...) -> None: ...

class GetConsentResponse(_message.Message):
    __slots__ = ("state", "by_default", "history")
    STATE_FIELD_NUMBER: _ClassVar[int]
    BY_DEFAULT_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    state: str
    by_default: bool
    history: _containers.RepeatedCompositeFieldContainer[ConsentChange]
    def __init__(self, state: _Optional[str] = ..., by_default: _Optional[bool] = ..., history: _Optional[_Iterable[_Union[ConsentChange, _Mapping]]] = ...) -> None: ...

class ConsentChange(_message.Message):
    __slots__ = ("at", "state", "by")
    AT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    at: _timestamp_pb2.Timestamp
    state: str
    by: str
    def __init__(self, at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., state: _Optional[str] = ..., by: _Optional[str] = ...) -> None: ...

class SetConsentRequest(_message.Message):
    __slots__ = ("user_id", "state", "forget")
    USER_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    FORGET_FIELD_NUMBER: _ClassVar[int]
    user_id: str
    state: str
    forget: bool
    def __init__(self, user_id: _Optional[str] = ..., state: _Optional[str] = ..., forget: _Optional[bool] = ...) -> None: ...

class SetConsentResponse(_message.Message):
    __slots__ = ("state", "receipt")
    STATE_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    state: str
    receipt: ForgetReceipt
    def __init__(self, state: _Optional[str] = ..., receipt: _Optional[_Union[ForgetReceipt, _Mapping]] = ...) -> None: ...

class GetConfigurationRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetConfigurationResponse(_message.Message):
    __slots__ = ("configuration", "needs_restart")
    CONFIGURATION_FIELD_NUMBER: _ClassVar[int]
    NEEDS_RESTART_FIELD_NUMBER: _ClassVar[int]
    configuration: _struct_pb2.Struct
    needs_restart: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, configuration: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., needs_restart: _Optional[_Iterable[str]] = ...) -> None: ...

class GetTurnRequest(_message.Message):
    __slots__ = ("id", "user_id")
    ID_FIELD_NUMBER: _ClassVar[int]
    USER_ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    user_id: str
    def __init__(self, id: _Optional[str] = ..., user_id: _Optional[str] = ...) -> None: ...

class ListTurnsRequest(_message.Message):
    __slots__ = ("user_id", "session_id", "limit")
    USER_ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    user_id: str
    session_id: str
    limit: int
    def __init__(self, user_id: _Optional[str] = ..., session_id: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class ListTurnsResponse(_message.Message):
    __slots__ = ("turns",)
    TURNS_FIELD_NUMBER: _ClassVar[int]
    turns: _containers.RepeatedCompositeFieldContainer[TurnReceipt]
    def __init__(self, turns: _Optional[_Iterable[_Union[TurnReceipt, _Mapping]]] = ...) -> None: ...

class TurnReceipt(_message.Message):
    __slots__ = ("id", "state", "session_id", "project_id", "accepted_at", "attempts", "reason", "learned")
    ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    PROJECT_ID_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_AT_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    LEARNED_FIELD_NUMBER: _ClassVar[int]
    id: str
    state: str
    session_id: str
    project_id: str
    accepted_at: _timestamp_pb2.Timestamp
    attempts: int
    reason: str
    learned: _containers.RepeatedCompositeFieldContainer[Memory]
    def __init__(self, id: _Optional[str] = ..., state: _Optional[str] = ..., session_id: _Optional[str] = ..., project_id: _Optional[str] = ..., accepted_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., attempts: _Optional[int] = ..., reason: _Optional[str] = ..., learned: _Optional[_Iterable[_Union[Memory, _Mapping]]] = ...) -> None: ...

class ListQuarantineRequest(_message.Message):
    __slots__ = ("user_id", "limit")
    USER_ID_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    user_id: str
    limit: int
    def __init__(self, user_id: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class ListQuarantineResponse(_message.Message):
    __slots__ = ("memories", "total")
    MEMORIES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    memories: _containers.RepeatedCompositeFieldContainer[Memory]
    total: int
    def __init__(self, memories: _Optional[_Iterable[_Union[Memory, _Mapping]]] = ..., total: _Optional[int] = ...) -> None: ...

class ReviewQuarantineRequest(_message.Message):
    __slots__ = ("user_id", "memory_ids", "verdict")
    USER_ID_FIELD_NUMBER: _ClassVar[int]
    MEMORY_IDS_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    user_id: str
    memory_ids: _containers.RepeatedScalarFieldContainer[str]
    verdict: str
    def __init__(self, user_id: _Optional[str] = ..., memory_ids: _Optional[_Iterable[str]] = ..., verdict: _Optional[str] = ...) -> None: ...

class ReviewQuarantineResponse(_message.Message):
    __slots__ = ("changed",)
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    changed: int
    def __init__(self, changed: _Optional[int] = ...) -> None: ...

class ListDeadLettersRequest(_message.Message):
    __slots__ = ("limit", "after")
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    limit: int
    after: str
    def __init__(self, limit: _Optional[int] = ..., after: _Optional[str] = ...) -> None: ...

class ListDeadLettersResponse(_message.Message):
    __slots__ = ("letters",)
    LETTERS_FIELD_NUMBER: _ClassVar[int]
    letters: _containers.RepeatedCompositeFieldContainer[DeadLetter]
    def __init__(self, letters: _Optional[_Iterable[_Union[DeadLetter, _Mapping]]] = ...) -> None: ...

class DeadLetter(_message.Message):
    __slots__ = ("turn_id", "place", "owner", "reason", "attempts", "asked_at", "failed_at")
    TURN_ID_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    ASKED_AT_FIELD_NUMBER: _ClassVar[int]
    FAILED_AT_FIELD_NUMBER: _ClassVar[int]
    turn_id: str
    place: str
    owner: str
    reason: str
    attempts: int
    asked_at: _timestamp_pb2.Timestamp
    failed_at: _timestamp_pb2.Timestamp
    def __init__(self, turn_id: _Optional[str] = ..., place: _Optional[str] = ..., owner: _Optional[str] = ..., reason: _Optional[str] = ..., attempts: _Optional[int] = ..., asked_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., failed_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class RetryDeadLettersRequest(_message.Message):
    __slots__ = ("turn_ids",)
    TURN_IDS_FIELD_NUMBER: _ClassVar[int]
    turn_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, turn_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class RetryDeadLettersResponse(_message.Message):
    __slots__ = ("retried",)
    RETRIED_FIELD_NUMBER: _ClassVar[int]
    retried: int
    def __init__(self, retried: _Optional[int] = ...) -> None: ...
