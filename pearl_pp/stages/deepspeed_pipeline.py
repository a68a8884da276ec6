"""DeepSpeed holds the pipeline together: one layer of a `PipelineModule` per rank, built on its rank only.

The only place that imports deepspeed, and only when it is called. It names the ranks and their groups; what
passes between them in the hot path is transport's.
"""

import contextlib
import io
import logging
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from pearl_pp.stages.rank_module import RankModule


def pipeline_module(world_size: int, rank: int, build: Callable[[int], RankModule]) -> RankModule:
    """Make a pipeline with one stage per rank and return this rank's, `build(rank)`.

    Collective, over the process group that transport has set up. A process alone, without one, needs no
    pipeline.
    """
    if not torch.distributed.is_initialized():
        if world_size != 1:
            raise RuntimeError("a pipeline over several ranks needs torch.distributed")
        return build(rank)
    built: list[RankModule] = []
    stdout = sys.stdout
    with _quiet_deepspeed():
        from deepspeed.pipe import LayerSpec, PipelineModule
        from deepspeed.runtime.pipe.topology import PipeDataParallelTopology

        class RankSpec(LayerSpec):
            """A layer that exists on one rank."""

            def __init__(self, stage_rank: int) -> None:
                super().__init__(RankModule)
                self.stage_rank = stage_rank

            def build(self, log: bool = False) -> RankModule:
                with contextlib.redirect_stdout(stdout):
                    built.append(build(self.stage_rank))
                return built[0]

        class Pipeline(PipelineModule):
            """Stages are built on their device; DeepSpeed would move them to the card LOCAL_RANK."""

            def to(self, *args: Any, **kwargs: Any) -> "Pipeline":
                return self

        os.environ.setdefault("LOCAL_RANK", "0")
        Pipeline(
            layers=[RankSpec(stage_rank) for stage_rank in range(world_size)],
            topology=PipeDataParallelTopology(num_pp=world_size, num_dp=1),
            partition_method="uniform",
        )
    return built[0]


@contextlib.contextmanager
def _quiet_deepspeed() -> Iterator[None]:
    """Import and initialise deepspeed without its output, and without compiling its operators.

    On a CPU its communication backend would build a C++ extension, two minutes of it, that nothing here uses.
    """
    if not torch.cuda.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    with contextlib.redirect_stdout(io.StringIO()):
        import deepspeed

        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        if not deepspeed.comm.is_initialized():
            deepspeed.init_distributed(dist_backend=torch.distributed.get_backend(), verbose=False)
        yield
