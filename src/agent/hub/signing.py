"""The hub signs what its agents send to the object store: it owns the credentials, and never sees the bytes.

It keeps no state about uploads: the store does, and the task asks it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent.errors import ConfigError
from agent.settings import Settings
from pipelines.files.s3_signer import Granted, S3Signer, Wanted, object_key
from pipelines.payload import decode_path

if TYPE_CHECKING:
    from agent.hub.catalogue import Catalogue


class SigningRefused(Exception):
    """No signature for that; the message goes back to the agent."""


@dataclass(frozen=True)
class Signing:
    """Signs for the objects of the catalogue's files, each agent's below its own name."""

    signer: S3Signer
    prefix: str

    @classmethod
    def of(cls, settings: Settings) -> Signing | None:
        """None where no bucket is set. Raises ConfigError where the rest is not."""
        if settings.s3_bucket is None:
            return None
        if settings.s3_access_key_id is None or settings.s3_secret_access_key is None:
            missing = "ACCESS_KEY_ID" if settings.s3_access_key_id is None else "SECRET_ACCESS_KEY"
            raise ConfigError(
                f"PHAZE_S3_BUCKET is set and PHAZE_S3_{missing} is not; set it, or PHAZE_S3_{missing}_FILE"
            )
        session = settings.s3_session_token
        try:
            signer = S3Signer(
                bucket=settings.s3_bucket,
                access_key_id=settings.s3_access_key_id.get_secret_value(),
                secret_access_key=settings.s3_secret_access_key.get_secret_value(),
                session_token=None if session is None else session.get_secret_value(),
                endpoint=settings.s3_endpoint,
                region=settings.s3_region,
                addressing=settings.s3_addressing,
                checksum=settings.s3_checksum,
                lifetime=settings.s3_url_lifetime,
            )
            signer.sign("a", Wanted(kind="head"))
        except Exception as error:  # botocore's own, of many types: a bucket's name, an endpoint, a region
            raise ConfigError(f"PHAZE_S3_* cannot be used: {error}") from None
        return cls(signer, settings.s3_prefix)

    async def grant(self, catalogue: Catalogue, agent_id: str, record_id: str, wanted: Wanted) -> Granted:
        """One signed request for the object of a file of that agent. Raises SigningRefused."""
        path = await asyncio.to_thread(catalogue.path_of_file, agent_id, record_id)
        if path is None:
            raise SigningRefused(f"{record_id} is not a file of agent {agent_id} in the catalogue; scan it first")
        key = object_key(f"{self.prefix}{agent_id}/", bytes(decode_path(path)))
        return Granted(bucket=self.signer.bucket, key=key, request=self.signer.sign(key, wanted))
