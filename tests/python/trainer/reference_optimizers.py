"""The arithmetic of the optimizers in float64, as the original defines it, one weight at a time."""

import math
from dataclasses import dataclass, field

import numpy as np


@dataclass
class Reference:
    """Weights by name, updated from gradients by name."""

    algorithm: str
    weights: dict
    settings: dict  # by weight: the fields of WeightSettings
    clips: bool = False
    step: int = 0
    moments: dict = field(default_factory=dict)

    def update(self, gradients, rate):
        self.step += 1
        norm = math.sqrt(sum(float((g * g).sum()) for g in gradients.values()))
        for name, gradient in gradients.items():
            own = self.settings[name]
            if self.clips and norm > own["max_norm"]:
                gradient = gradient * own["max_norm"] / norm
            weight, eta = self.weights[name], rate * own["rate_scale"]
            self.weights[name] = getattr(self, f"_{self.algorithm}")(name, weight, gradient, eta, own)

    def _sgd(self, name, w, g, eta, own):
        return w - eta * g

    def _moments(self, name, g, own):
        m, v = self.moments.get(name, (np.zeros_like(g), np.zeros_like(g)))
        m = own["alpha"] * m + (1 - own["alpha"]) * g
        v = own["beta"] * v + (1 - own["beta"]) * g * g
        self.moments[name] = m, v
        corrects = own["correct_bias"]
        return m, v, *((1 - b**self.step if corrects else 1.0) for b in (own["alpha"], own["beta"]))

    def _adam(self, name, w, g, eta, own):
        m, v, ca, cb = self._moments(name, g, own)
        if own["decays_after"]:
            w = w - eta * math.sqrt(cb) / ca * m / (np.sqrt(v) + own["epsilon"])
            return w - eta * own["weight_decay"] * w
        return w - eta * ((m / ca) / (np.sqrt(v / cb) + own["epsilon"]) + own["weight_decay"] * w)

    def _lamb(self, name, w, g, eta, own):
        m, v, ca, cb = self._moments(name, g, own)
        d = own["weight_decay"] * w + (m / ca) / (np.sqrt(v / cb) + own["epsilon"])
        norms = math.sqrt((w * w).sum()), math.sqrt((d * d).sum())
        ratio = 1.0
        if all(norms):
            ratio = min(own["ratio_max"], max(own["ratio_min"], norms[0] / norms[1]))
        return w - eta * ratio * d
