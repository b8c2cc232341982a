"""`hydrant export`: a run's model in the formats of others."""

from hydrant.commands.registry import Command

COMMAND = Command("export", "write a run's model as safetensors, torch_export or onnx", section="Use",
                  writes=True)  # fmt: skip
