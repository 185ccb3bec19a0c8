"""A Keras model in HDF5 -> a frozen graph: the layers that the networks of the wheel `tempocnn` are made of.

Batch normalisation becomes a factor and a term (it is not trained any more); the input is called `input`, the softmax
at the end `output`, as essentia's TempoCNN wants them. Imports h5py and numpy.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from pipelines.music.models.graph import (
    FLOAT,
    INT32,
    Attributes,
    Node,
    constant,
    encode_graph,
    of_bool,
    of_list,
    of_shape,
    of_text,
    of_type,
    of_whole,
)

T: Attributes = {"T": of_type(FLOAT)}

ACTIVATIONS = {"relu": "Relu", "elu": "Elu"}
POOLS = {"MaxPooling2D": "MaxPool", "AveragePooling2D": "AvgPool"}

INPUT_SHAPE = (-1, 40, 256, 1)
"""Batch, Mel bands, frames of 46 ms, one channel."""


class UnknownLayer(ValueError):
    """The network has a layer that no network of the wheel had."""


def convert(path: Path) -> bytes:
    """The frozen graph of one `.h5` file. Raises UnknownLayer, OSError, ToolMissing's ImportError where no h5py is."""
    import h5py

    with h5py.File(path, "r") as file:
        layers = json.loads(_text(file.attrs["model_config"]))["config"]["layers"]
        network = _Network(file["model_weights"])
        for layer in layers:
            network.add(layer)
    return encode_graph(network.nodes)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


class _Network:
    def __init__(self, weights: Any) -> None:
        self.nodes: list[Node] = []
        self._weights = weights
        self._ends: dict[str, str] = {}
        """layer -> the node in which it ends."""

    def add(self, layer: dict[str, Any]) -> None:
        """One layer and its nodes, after those that it takes from."""
        config, name = layer["config"], layer["config"]["name"]
        sources = [self._ends[inbound[0]] for inbound in (layer.get("inbound_nodes") or [[]])[0]]
        self._ends[name] = self._end(layer["class_name"], name, config, sources)

    def _end(self, kind: str, name: str, config: dict[str, Any], sources: list[str]) -> str:
        match kind:
            case "InputLayer":
                return self._node(
                    "input", "Placeholder", [], {"dtype": of_type(FLOAT), "shape": of_shape(*INPUT_SHAPE)}
                )
            case "Conv2D":
                return self._convolution(name, config, sources[0])
            case "BatchNormalization":
                return self._normalisation(name, config, sources[0])
            case "MaxPooling2D" | "AveragePooling2D":
                window = {
                    "ksize": of_list([1, *config["pool_size"], 1]),
                    "strides": of_list([1, *config["strides"], 1]),
                }
                return self._node(name, POOLS[kind], sources, T | window | {"padding": of_text("VALID")})
            case "Dropout":
                return sources[0]
            case "Concatenate":
                axis = self._whole_numbers(f"{name}/axis", np.array(3))
                sizes = {"N": of_whole(len(sources)), "Tidx": of_type(INT32)}
                return self._node(name, "ConcatV2", [*sources, axis], T | sizes)
            case "GlobalAveragePooling2D":
                axes = self._whole_numbers(f"{name}/axes", np.array([1, 2]))
                return self._node(
                    name, "Mean", [sources[0], axes], T | {"Tidx": of_type(INT32), "keep_dims": of_bool(False)}
                )
            case "Activation" if config["activation"] == "softmax":
                return self._node("output", "Softmax", sources, T)
        raise UnknownLayer(f"{name} is a {kind}, which cannot be converted")

    def _convolution(self, name: str, config: dict[str, Any], source: str) -> str:
        kernel, bias = self._of_layer(name)
        how = {
            "strides": of_list([1, *config["strides"], 1]),
            "padding": of_text(config["padding"].upper()),
            "data_format": of_text("NHWC"),
        }
        folded = self._node(f"{name}/conv", "Conv2D", [source, self._numbers(f"{name}/kernel", kernel)], T | how)
        biased = self._node(f"{name}/biased", "BiasAdd", [folded, self._numbers(f"{name}/bias", bias)], T)
        return self._node(f"{name}/activated", ACTIVATIONS[config["activation"]], [biased], T)

    def _normalisation(self, name: str, config: dict[str, Any], source: str) -> str:
        gamma, beta, mean, variance = self._of_layer(name)
        factor = gamma / np.sqrt(variance + config["epsilon"])
        scaled = self._node(f"{name}/scaled", "Mul", [source, self._numbers(f"{name}/factor", factor)], T)
        term = self._numbers(f"{name}/term", beta - mean * factor)
        return self._node(f"{name}/shifted", "Add", [scaled, term], T)

    def _of_layer(self, name: str) -> list[Any]:
        group = self._weights[name]
        return [np.array(group[_text(weight)]) for weight in group.attrs["weight_names"]]

    def _numbers(self, name: str, values: Any) -> str:
        values = np.ascontiguousarray(values, "<f4")
        self.nodes.append(constant(name, FLOAT, values.shape, values.tobytes()))
        return name

    def _whole_numbers(self, name: str, values: Any) -> str:
        self.nodes.append(constant(name, INT32, values.shape, values.astype("<i4").tobytes()))
        return name

    def _node(self, name: str, op: str, inputs: list[str], attributes: Attributes) -> str:
        self.nodes.append(Node(name, op, tuple(inputs), attributes))
        return name
