"""`keepwarm drop`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from keepwarm.cli.exits import FAILED, UnreachableError, reach
from keepwarm.cli.output import complain
from keepwarm.config import parse_duration, read_toml
from keepwarm.errors import NodeError
from keepwarm.identity import Namespace


def drop(
    namespace: Path,
    *,
    address: str | None = None,
    json_: Annotated[bool, Parameter(name="--json", negative=())] = False,
    deadline: str = "5s",
) -> int:
    """Remove a namespace's blocks from a node.

    They are hidden at once; leased bytes are freed when their leases end, within a minute. Exit
    code 1 if the node has no such namespace: it says which one is near.

    Parameters
    ----------
    namespace
        A TOML file with the namespace's fields, and secret = "path" unless its tenant is default.
    address
        Where the node is: unix:/path, a path, tcp://host:port or tls://host:port. Without it
        KEEPWARM_ADDRESS, else the default socket.
    json_
        The answer as JSON.
    deadline
        How long to wait for the node.
    """
    deadline_s = parse_duration(deadline, "deadline")
    names = read_namespace(namespace)
    shown = names.fingerprint.hex()
    with reach(address, deadline_s) as memory:
        try:
            known = memory.stat(deadline_s)["namespaces"].values()
            here = any(space["fingerprint"] == shown for space in known)
            # Where it is not here this opens it, empty, until the node needs its place: the node
            # alone can say which one is near.
            space = memory.attach(names, deadline_s=deadline_s)
            dropped = space.drop(deadline_s=deadline_s)
        except NodeError as error:
            raise UnreachableError(f"the node does not answer: {error}") from None
        nearest = None if here else space.nearest
    if json_:
        answer = {"namespace": shown, "here": here, "dropped": dropped, "nearest": nearest}
        json.dump(answer, sys.stdout)
        sys.stdout.write("\n")
    elif here:
        sys.stdout.write(f"dropped {dropped} blocks of {names!r}\n")
    if here:
        return 0
    near = f"; the most similar one here: {nearest}" if nearest else ""
    complain(f"keepwarm: the node had no namespace {names!r}, and nothing was dropped{near}")
    return FAILED


def read_namespace(file: Path) -> Namespace:
    """A namespace from a TOML file of its fields."""
    return Namespace(**read_toml(file, "namespace"))
