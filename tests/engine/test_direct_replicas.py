"""One engine's blocks are another's, if it is the same in every respect."""

from __future__ import annotations

from collections.abc import Callable

from keepwarm.adapter.reasons import Recomputed
from keepwarm.testing import NodeProcess

from engine.direct import Direct, connector
from engine.harness import Engine, prompt


def test_another_engine_restores_and_other_weights_do_not(
    make_engine: Callable[..., Engine], node: NodeProcess
) -> None:
    asked = prompt(8000, 1056)
    one = Direct(make_engine("micro", connector(node.address)))
    one.joined()
    one.engine.ask(asked)
    own = one.engine.ask(asked)
    one.stored()
    two = Direct(make_engine("micro", connector(node.address)))
    two.joined()
    answer = two.engine.ask(asked)
    assert (answer.tokens, answer.cached_tokens) == (own.tokens, 1024)
    two.at_rest()
    other = Direct(make_engine("micro", connector(node.address, weights="another version")))
    other.joined()
    assert other.engine.ask(asked).cached_tokens == 0
    assert other.recomputed(Recomputed.ABSENT) > 0
    # The half that came first is told how its namespace differs from those that the node has.
    spaces = [half.session.space for half in (other.scheduler, other.worker)]
    assert any("weights" in ((space and space.nearest) or "") for space in spaces)
    other.at_rest()
