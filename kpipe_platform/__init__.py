"""kpipe platform: Dagster assets over Apache Kafka topics, run on Spark, exactly once.

Everything that users need is here. `__init__.pyi` lists the names; each loads when it is first used, so that importing
the package is quick.
"""

import lazy_loader

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__all__ += ["__version__"]
