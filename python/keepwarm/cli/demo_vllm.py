"""``keepwarm demo vllm``: two real vLLM replicas, one node, and whether restoring wins."""

from __future__ import annotations

import json
import signal
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from keepwarm.cli.output import complain, tell

if TYPE_CHECKING:
    from rich.console import Console

    from keepwarm.demo.vllm import Record, Sizes

NODE_BYTES = 1280 << 20
INTERRUPTED = 130


def vllm(
    *,
    out: Path = Path("out"),
    json_: Annotated[bool, Parameter(name="--json", negative=())] = False,
    connector: Literal["direct", "tier"] = "direct",
    engine_python: Path | None = None,
    model: Path | None = None,
    conversations: int = 6,
    turns: int = 5,
) -> int:
    """Let two real vLLM replicas share a node, and measure the time to first token.

    Installs vLLM for the CPU and a small model into your cache folder if
    they are not there, and says how long that takes; then about five
    minutes. Exit code 0 if every answer was the same, token by token, and
    restoring beat computing; 1, with the reason, if not.

    Parameters
    ----------
    out
        Folder for demo.json, demo-vllm.html and the engines' logs.
    json_
        Print demo.json instead of the report.
    connector
        direct: engine memory to node. tier: through vLLM's own host pool.
    engine_python
        The Python of an environment with vLLM 0.32 for the CPU, instead of ours.
    model
        A folder with a model, instead of SmolLM2-135M.
    conversations
        How many, of 1,024 to 3,072 tokens. More need more time.
    turns
        Of the conversation that grows.
    """
    from rich.console import Console

    from keepwarm.demo.vllm import Sizes
    from keepwarm.engines.asking import EngineError
    from keepwarm.testing.node import ProcessError

    if not _can_be(out, conversations, turns, model):
        return 2
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _end_once)
    console = Console(stderr=json_, width=None if sys.stdout.isatty() else 120)
    sizes = Sizes(conversations=conversations, turns=turns)
    try:
        record = _measured(console, sizes, connector, engine_python, model, out)
    except (EngineError, ProcessError, ValueError) as error:
        console.print("[bold red]the demo failed:[/bold red]", end=" ")
        console.print(str(error), markup=False, highlight=False)
        return 1
    except KeyboardInterrupt:
        console.print("interrupted: engines and node are stopped")
        return INTERRUPTED
    return _reported(console, record, connector, out, as_json=json_)


def _can_be(out: Path, conversations: int, turns: int, model: Path | None) -> bool:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        complain(f"keepwarm: out is {out}: {error.strerror}: give a folder to write")
        return False
    if conversations < 1 or turns < 1:
        complain("keepwarm: conversations and turns are numbers from 1 on")
        return False
    if model is not None and not model.is_dir():
        complain(f"keepwarm: model is {model}: no folder of a model")
        return False
    return True


def _end_once(number: int, _: object) -> None:
    """Both signals end the demo in order; a second one must not cut that short."""
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    sys.exit(128 + number)


def _measured(
    console: Console,
    sizes: Sizes,
    connector: Literal["direct", "tier"],
    python: Path | None,
    model: Path | None,
    out: Path,
) -> Record:
    from keepwarm.demo.vllm import VllmFleet, run
    from keepwarm.engines import ensure_engine, ensure_model

    begun = time.monotonic()

    def say(text: str) -> None:
        console.print(f"{time.monotonic() - begun:4.0f} s  {text}", markup=False, highlight=False)

    def progress(done: int, total: int, doing: str) -> None:
        say(f"{done:>3}/{total} requests; {doing}")

    python = python or ensure_engine(say)
    model = model or ensure_model("smollm2-135m", python, say)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="keepwarm-demo-")))
        fleet = VllmFleet(folder, out.resolve(), python, model, connector, NODE_BYTES, say)
        return run(stack.enter_context(fleet), sizes, progress)


def _reported(console: Console, record: Record, connector: str, out: Path, *, as_json: bool) -> int:
    from keepwarm.demo.vllm import page, report, summarise

    summary = summarise(record)
    text = json.dumps(report.plain(record, summary, connector), indent=1)
    (out / "demo.json").write_text(text + "\n", encoding="utf-8")
    page_text = page.html(record, summary, connector)
    (out / "demo-vllm.html").write_text(page_text, encoding="utf-8")
    if as_json:
        tell(text)
    console.print()
    report.show(console, record, summary)
    console.print(f"{out}/demo.json, {out}/demo-vllm.html", highlight=False)
    return 1 if summary.problems else 0
