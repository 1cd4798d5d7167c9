"""Six real networks, exported from torch on the spot: what tests/python/test_real_models.py checks and
benchmarks/run.py times.

    import models
    path = models.export(models.NETWORKS["bert"], models.Export("dynamo", 20, dynamic=True))
"""

from models import bert, gpt2, lstm_tagger, mlp, mobilenet, resnet
from models.export import Export, export
from models.network import Extents, Feeds, Network

NETWORKS = {m.NETWORK.name: m.NETWORK for m in (mlp, resnet, mobilenet, lstm_tagger, bert, gpt2)}

__all__ = ["NETWORKS", "Export", "Extents", "Feeds", "Network", "export"]
