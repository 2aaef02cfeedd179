"""Which addresses are public: one rule, which every door asks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import perstack
from perstack.core.definitions.public_addresses import is_public
from perstack.core.definitions.sandbox import destination_problem
from perstack.definition_files import load_project
from perstack.errors import DefinitionError
from perstack_bubblewrap.network import PlaceRefused, check_address
from perstack_mcp.http_transports import refuse_private

PRIVATE = [
    "127.0.0.1", "10.0.0.1", "172.16.0.1", "192.168.0.1", "100.64.0.1", "100.100.100.200", "169.254.169.254",
    "168.63.129.16", "192.0.0.192", "192.88.99.1", "198.18.0.1", "0.0.0.0", "224.0.0.1", "239.1.1.1", "240.0.0.1",
    "255.255.255.255", "::", "::1", "::1%lo", "fe80::1", "fe80::1%eth0", "fec0::1", "feff:ffff::1", "fc00::1",
    "fd00::1", "fd00:ec2::254", "ff0e::1", "2001:db8::1", "3fff::1", "2001::1", "::127.0.0.1", "::8.8.8.8",
    "::ffff:127.0.0.1", "::ffff:168.63.129.16", "64:ff9b::7f00:1", "64:ff9b::a83f:8110", "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::808:808", "2002:7f00:1::", "2002:a83f:8110::1", "4000::1",
]  # fmt: skip
PUBLIC = ["8.8.8.8", "93.184.215.14", "168.63.129.15", "168.63.129.17", "2606:4700::1111", "64:ff9b::808:808"]


@pytest.mark.parametrize("address", PRIVATE)
def test_every_door_refuses_a_private_address(address: str, tmp_path: Path) -> None:
    assert not is_public(address)
    with pytest.raises(Exception, match="private or local address"):
        refuse_private(address, "a.example")
    with pytest.raises(PlaceRefused, match="not a public address"):
        check_address("a.example", 443, address, ("a.example",))
    if ":" not in address:
        assert "not a public address" in (destination_problem(address) or "")
        assert "must be a public address" in _said_of(tmp_path, address)
    elif "%" not in address:
        assert "must be a public address" in _said_of(tmp_path, f"[{address}]")


@pytest.mark.parametrize("address", PUBLIC)
def test_every_door_takes_a_public_address(address: str) -> None:
    assert is_public(address)
    refuse_private(address, "a.example")
    check_address("a.example", 443, address, ("a.example",))
    if ":" not in address:
        assert destination_problem(address) is None


def _said_of(folder: Path, host: str) -> str:
    """What is said of an MCP server there when the definition is read."""
    skill = f'[experts.a.skills.web]\ntype = "mcpSseSkill"\nendpoint = "https://{host}/mcp"\n'
    (folder / "perstack.toml").write_text(f'[experts.a]\ninstruction = "i"\n{skill}')
    with pytest.raises(DefinitionError) as caught:
        load_project(folder / "perstack.toml")
    return str(caught.value)


@given(st.ip_addresses(v=4))
def test_no_wrapping_of_a_private_address_is_public(inner) -> None:
    high, low = divmod(int(inner), 1 << 16)
    wrapped = (f"::ffff:{inner}", f"64:ff9b::{high:x}:{low:x}", f"2002:{high:x}:{low:x}::1", f"::{inner}")
    assert is_public(str(inner)) or not any(map(is_public, wrapped))


def test_nothing_else_decides_what_is_public() -> None:
    root = Path(perstack.__file__).parents[2]
    sources = [path for folder in ("host", "plugins") for path in (root / folder).rglob("*.py")]
    asking = [path.name for path in sources if re.search(r"\.is_(global|private)\b", path.read_text())]
    assert asking == ["public_addresses.py"]
