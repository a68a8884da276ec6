"""The options of a run: RunConfig, the flags and YAML files that make one, and the other files it names."""

from pearl_pp.config.named_files import check_named_files
from pearl_pp.config.placement_file import PlacementFile, ShardEntry, read_placement_file
from pearl_pp.config.profile_file import read_profile
from pearl_pp.config.run_config import OPTIONS, PRESETS, RunConfig, option_name, run_config
from pearl_pp.config.shape_file import find_shape, read_shape

__all__ = [
    "OPTIONS",
    "PRESETS",
    "PlacementFile",
    "RunConfig",
    "ShardEntry",
    "check_named_files",
    "find_shape",
    "option_name",
    "read_placement_file",
    "read_profile",
    "read_shape",
    "run_config",
]
