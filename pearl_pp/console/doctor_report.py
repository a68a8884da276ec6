"""What `pearl-pp doctor` prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from pearl_pp.console.diagnosis import Finding
from pearl_pp.console.summary import NOT_AVAILABLE
from pearl_pp.runtime.link_times import LinkTimes
from pearl_pp.runtime.machine import RankFacts

_WIDTH = 120  # of a file or a pipe

HEALTHY = "nothing here would stop a run"
MEASURED = (
    "latency in us, bandwidth in GB/s (10^9 bytes), one way: half of a round trip, median of several; measured here"
)


def print_report(
    ranks: Sequence[RankFacts], links: Mapping[str, LinkTimes | None], findings: Sequence[Finding]
) -> None:
    """Versions, a row for each rank, a matrix for each plane, and the findings, those that stop a run first."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _WIDTH
    versions = ", ".join(f"{name} {version}" for name, version in ranks[0].versions.items())
    console.print(f"versions  {versions}", markup=False, soft_wrap=True)
    console.print(_ranks_table(ranks))
    for plane, table in links.items():
        if table and len(table) > 1:
            console.print(_links_table(plane, table))
    for finding in findings:
        console.print(f"{'STOPS' if finding.stops else 'note'}  {finding.text}", markup=False, soft_wrap=True)
    if not any(finding.stops for finding in findings):
        console.print(HEALTHY)


def _ranks_table(ranks: Sequence[RankFacts]) -> Table:
    table = Table(box=box.SIMPLE, pad_edge=False)
    for heading, justify in (
        ("rank", "right"),
        ("host", "left"),
        ("device", "left"),
        ("free GB", "right"),
        ("of", "right"),
        ("cores", "right"),
        ("OMP threads", "right"),
        ("interface", "left"),
    ):
        table.add_column(heading, justify=justify)  # pyright: ignore[reportArgumentType]
    for number, rank in enumerate(ranks):
        device = NOT_AVAILABLE if rank.device is None else rank.device
        table.add_row(
            str(number),
            rank.host,
            device if rank.card is None else f"{device} {rank.card}",
            f"{rank.free_bytes / 1e9:.1f}",
            f"{rank.total_bytes / 1e9:.1f}",
            str(rank.num_cores),
            rank.num_threads or "not set",
            " ".join(filter(None, (rank.interface, rank.interface_address))) or NOT_AVAILABLE,
        )
    return table


def _links_table(plane: str, links: LinkTimes) -> Table:
    caption = f"{plane} plane: {MEASURED}"
    table = Table(box=box.SIMPLE, pad_edge=False, caption=caption, caption_justify="left")
    table.add_column(plane, justify="right")
    for number in range(len(links)):
        table.add_column(f"rank {number}", justify="right")
    for number, row in enumerate(links):
        cells = ("" if link is None else f"{link.latency_us:.0f} us {link.bandwidth_gb_s:.2f}" for link in row)
        table.add_row(f"rank {number}", *cells)
    return table
