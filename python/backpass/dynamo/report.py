"""What was compiled: one report per graph, with everything that is not done by the engine."""

from __future__ import annotations

import collections
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class GraphReport:
    """One graph handed over by torch.compile."""

    kind: str
    """``training`` (forward capture), ``forward`` and ``backward`` (AOT), or ``inference``."""
    nodes: int = 0
    """Nodes of the exported model."""
    fallbacks: list[str] = field(default_factory=list)
    """aten operators that are called back in torch, one entry per node."""
    reason: str = ""
    """Why torch runs the whole graph; empty when the engine does."""
    note: str = ""
    """Why the preferred mode was not taken; empty when it was."""
    seconds: float = 0.0
    """Time it took to export and load."""
    torch_seconds: float = 0.0
    """How much of that torch took itself: torch.export."""
    calls: int = 0
    dump: Path | None = None

    @property
    def native(self) -> bool:
        """Whether the engine does all of it."""
        return not self.fallbacks and not self.reason

    def __str__(self) -> str:
        text = f"{self.kind} graph: {self.nodes} nodes, {self.seconds:.2f} s"
        if self.fallbacks:
            counts = collections.Counter(self.fallbacks)
            text += "; in torch: " + ", ".join(f"{n} ({c})" if c > 1 else n for n, c in sorted(counts.items()))
        if self.reason:
            text += f"; run by torch: {self.reason}"
        return text + (f"; {self.note}" if self.note else "")


@dataclass
class CompileRecord:
    """All graphs of one backend."""

    graphs: list[GraphReport] = field(default_factory=list)

    @property
    def execution_count(self) -> int:
        """How often any graph ran."""
        return sum(g.calls for g in self.graphs)

    def clear(self) -> None:
        self.graphs.clear()

    def __str__(self) -> str:
        return "\n".join(map(str, self.graphs))
