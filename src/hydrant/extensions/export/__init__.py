"""`hydrant export`: a run's model in the formats of others."""

from hydrant.commands.registry import Command

COMMAND = Command(
    "export",
    "write a run's model as safetensors, torch_export or onnx",
    main=f"{__name__}.command:main",
    section="Use",
    writes=True,
)
