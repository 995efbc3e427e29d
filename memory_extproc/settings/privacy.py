"""What may be kept of people's words, with whose consent, and how it rests."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal

from pydantic import Field, SecretStr

from memory_extproc.safety.identifiers import Identifiers
from memory_extproc.safety.sensitive import Category
from memory_extproc.settings.values import (
    Duration,
    Positive,
    Section,
)

ConsentDefault = Literal["opt_out", "opt_in"]


class Privacy(Section):
    hash_user_ids: bool = Field(default=False, description="true: a keyed hash stands for the user id everywhere")
    hash_key: SecretStr = Field(SecretStr(""), description="16 bytes or more; secret; lost, memories are orphaned")
    hash_key_file: str = Field("", description="file that holds the hash key")
    encrypt_content: bool = Field(
        default=False, description="true: texts rest sealed, in Milvus and the journal, with a key of each caller's"
    )
    master_key_file: str = Field(
        "", description="file of the master keys that wrap those, a line each; `memory-extproc keys new` prints one"
    )
    keys_file: str = Field(
        "", description="where the wrapped keys rest; empty: keys.db under data_dir, or Redis where there is one"
    )
    consent: ConsentDefault = Field(
        "opt_out", description="of who never chose: opt_out: has memory until they say no; opt_in: none until yes"
    )
    consent_of: dict[str, ConsentDefault] = Field(
        {}, description="the same for single tenants, by name", examples=[{"acme": "opt_in"}]
    )
    consent_fresh: Positive = Field(
        timedelta(seconds=5), description="within which a choice made at one replica holds at the others"
    )
    consent_grace: Duration = Field(
        timedelta(minutes=1), description="how long a yes counts while nobody can be asked; then nothing is allowed"
    )
    identifiers: Identifiers = Field(
        Identifiers.KEEP,
        description="mail addresses, phones, national ids, streets: keep; mask; drop their sentence",
    )
    sensitive: frozenset[Category] = Field(
        frozenset({Category.DIET}),
        description="special categories kept though nobody asked for it: health, religion, politics, sexuality, "
        "ethnicity, union, crime, biometry, diet (food allergies); the others are not",
        examples=[["diet", "health"]],
    )
    quarantine: bool = Field(
        default=True, description="put what instructs an assistant aside; false: as any memory"
    )

    @property
    def key(self) -> bytes | None:
        """What `IdentitySection.options` takes; None unless user ids are hashed."""
        return self.hash_key.get_secret_value().encode() if self.hash_user_ids else None
