"""Pretrained models: which there are, where they come from, how they are converted, and how they listen.

catalogue.py   the table of models, and where their files lie
wire.py        as much of protocol buffers as a graph of TensorFlow 1 needs
graph.py       nodes of a frozen graph, written out
checkpoint.py  a checkpoint of TensorFlow 1 -> a frozen graph (the wheel `musicnn`)
keras.py       a Keras HDF5 file -> a frozen graph (the wheel `tempocnn`)
wheels.py      from PyPI's wheel to an installed model
listen.py      the installed models on windows of sound (imports essentia)

A model is two files of one stem: `.pb`, a frozen graph, and `.json`, which names its inputs, outputs and classes, in
the form that essentia's own models have. What a number means is looked up there, never counted off.
"""
