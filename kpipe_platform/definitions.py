"""What ``workspace.yaml`` loads: the flights platform."""

import dagster as dg

from kpipe_platform.demo.assets import ALL
from kpipe_platform.demo.platform import resources

# A separate process for each step would take three seconds to start and need its own Spark session.
defs = dg.Definitions(assets=ALL, resources=resources(), executor=dg.in_process_executor)
