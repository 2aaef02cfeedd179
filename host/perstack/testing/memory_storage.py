"""The older names of `perstack.testing.in_memory_storage`."""

from perstack.testing.in_memory_storage import InMemoryStorage as MemoryStorage
from perstack.testing.in_memory_storage import InMemoryStorages as MemoryStorages
from perstack.testing.in_memory_storage import InMemoryStore as MemoryStore

__all__ = ["MemoryStorage", "MemoryStorages", "MemoryStore"]
