"""`oneloop plan` and `Trainer.plan`: what a run will need, before it is started on the machines that have it.

Sizes, steps and messages are computed here, from the parameters and the arguments. What a step takes in memory is asked
of the backend, which runs one on tensors without data (`planning` of base.Backend); without that module there are
no figures for activations.
"""
