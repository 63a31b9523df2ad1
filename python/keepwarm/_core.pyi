from os import PathLike
from typing import final

__all__ = ["Namespace", "__version__", "namespace_fields"]
__version__: str

_Facts = tuple[bytes | None, bytes | None, list[tuple[bytes, int, int]]]

def namespace_fields() -> list[tuple[str, str]]: ...

@final
class Namespace:
    def __new__(
        cls, fields: list[tuple[str, object]], secret: str | PathLike[str] | None = None
    ) -> Namespace: ...
    @property
    def encoding(self) -> bytes: ...
    @property
    def fingerprint(self) -> bytes: ...
    @property
    def key_check(self) -> bytes: ...
    @property
    def tenant(self) -> str: ...
    @property
    def parts(self) -> int: ...
    @property
    def block_tokens(self) -> int: ...
    @property
    def run_blocks(self) -> int: ...
    def differences(self, other: Namespace) -> list[str]: ...
    def block_keys(
        self,
        tokens: object,
        previous: object = None,
        facts: _Facts | None = None,
        first_token: int = 0,
    ) -> bytes: ...
    def engine_keys(
        self, hashes: list[bytes], group: int = 0, facts: _Facts | None = None
    ) -> bytes: ...
