"""The files that the options of a run name, looked at before anything large is loaded."""

from pearl_pp.config.placement_file import read_placement_file
from pearl_pp.config.profile_file import read_profile
from pearl_pp.config.run_config import RunConfig


def check_named_files(config: RunConfig) -> None:
    """Raises UserError for a profile or a placement file that cannot be used, as the run itself would later."""
    if config.emulate is not None:
        read_profile(config.emulate)
    if config.names_placement_file:
        read_placement_file(config.placement)
