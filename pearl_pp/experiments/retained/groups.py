"""Programs that make the runs of an experiment: started when first needed, kept alive for all runs after it.

No torch in here: what is started imports it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from pearl_pp.config import RunConfig, run_config
from pearl_pp.experiments.commands import group_program, prompt_message, run_options
from pearl_pp.experiments.lines import Program, ProgramFailed
from pearl_pp.experiments.retained.job import ENGINE, HF, HF_ASSISTED, HF_PIPELINE, Job

CUDA, CPU, AUTO = "cuda", "cpu", "auto"


class _Place(NamedTuple):
    """Where runs can be made together.

    Args:
        program: `_RANKS` or `_ALONE`.
        device: `AUTO` only until it is known what that is here.
        timeout_s: longest wait for a message of another rank.
    """

    program: str
    num_ranks: int
    device: str
    timeout_s: float


_RANKS, _ALONE = "ranks", "transformers"

_PROGRAMS: dict[str, Callable[[_Place], list[str]]] = {
    _RANKS: lambda place: group_program(place.num_ranks, place.device, place.timeout_s),
    _ALONE: lambda place: ["pearl_pp.experiments.transformers_rows", place.device],
}
_RUNS_IN = {ENGINE: _RANKS, HF: _ALONE, HF_ASSISTED: _ALONE, HF_PIPELINE: _RANKS}


class Groups:
    """Groups of ranks, one for each number of ranks, and transformers in a process of its own. A context manager.

    All of them end with this process, whatever ends it.

    Args:
        keep_alive: what a program has loaded stays while others work. None: on a CPU; on GPUs one program at a time
            holds models, and what others have loaded is freed before its run.
    """

    def __init__(self, keep_alive: bool | None = None) -> None:
        self._keep_alive = keep_alive
        self._programs: dict[_Place, Program] = {}
        self._loaded: set[_Place] = set()
        self._has_cuda: bool | None = None

    def run(self, job: Job) -> dict[str, Any]:
        """One run; starts what it needs.

        Returns what an `Engines.run` or a `TransformersRows.run` answers: token ids, text, metrics, plan, versions,
        machine, mode, gamma, notes, trace.

        Raises:
            UserError: options, a model or a prompt that does not fit; the next run finds everything as it was.
            ProgramFailed: a process has crashed; says what of first, and the next run starts new ones.
        """
        config = run_config(run_options(job.options))
        place = self._place(job, config)
        program = self._program(place)
        self._make_room(place)
        self._loaded.add(place)
        try:
            return program.ask(_message(job, place))
        except ProgramFailed:
            self._end(place)
            raise

    def close(self) -> None:
        """Ends every program. More than once does nothing more."""
        for program in self._programs.values():
            program.let_go()  # all of them end at the same time
        for place in list(self._programs):
            self._end(place)

    def __enter__(self) -> Groups:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _place(self, job: Job, config: RunConfig) -> _Place:
        program = _RUNS_IN[job.kind]
        num_ranks = job.num_ranks if program == _RANKS else 1
        place = self._known(_Place(program, num_ranks, config.run_device, config.timeout))
        if place.device == AUTO:
            self._program(place)
            place = self._known(place)
        # On cards one process spreads a model over them; transformers' ranks would need NCCL groups of their own.
        if job.kind == HF_PIPELINE and place.device == CUDA:
            return place._replace(program=_ALONE, num_ranks=1)
        return place

    def _known(self, place: _Place) -> _Place:
        """`place` with the device that auto means here, once a program has told it."""
        if place.device != AUTO or self._has_cuda is None:
            return place
        return place._replace(device=CUDA if self._has_cuda else CPU)

    def _program(self, place: _Place) -> Program:
        if place not in self._programs:
            what = f"{place.num_ranks} ranks" if place.program == _RANKS else place.program
            program = Program(what, _PROGRAMS[place.program](place))
            try:
                self._has_cuda = program.ask({"device": {}})["has_cuda"]
            except BaseException:
                program.close()
                raise
            place = self._known(place)
            self._programs[place] = program
        return self._programs[place]

    def _make_room(self, place: _Place) -> None:
        if self._keep_alive is True:
            return
        for other in self._loaded - {place}:
            if self._keep_alive is False or other.device == place.device == CUDA:
                try:
                    self._programs[other].ask({"unload": {}})
                    self._loaded.remove(other)
                except ProgramFailed:  # what it held went with it, and the run is not its own
                    self._end(other)

    def _end(self, place: _Place) -> None:
        self._loaded.discard(place)
        self._programs.pop(place).close()


def _message(job: Job, place: _Place) -> Mapping[str, Any]:
    asked = {"options": dict(job.options), "prompt": prompt_message(job.prompt)}
    if place.program == _ALONE:
        return {"run": {**asked, "kind": job.kind, "num_devices": job.num_ranks}}
    return {"run": {**asked, "trace": job.trace}} if job.kind == ENGINE else {"run_pipeline": asked}
