"""Engines to test and show Keepwarm with: installed into an environment of their own, never ours.

install.py makes the environment, models.py the models, both once for a user's cache folder. Nothing
here imports an engine: what does is a script that runs in the engine's environment.
"""

from keepwarm.engines.install import ensure_engine
from keepwarm.engines.models import MODELS, ensure_model

__all__ = ["MODELS", "ensure_engine", "ensure_model"]
