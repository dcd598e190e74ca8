"""DeepSpeed's ZeRO stage 3 with DeepSpeed's default backend."""

import deepspeed
from losses import BATCH, batches, model, place, write

# Otherwise, DeepSpeed compiles a C++ extension for CPU tensors, which takes most of a minute.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
place()
deepspeed.init_distributed(verbose=False)
configuration = {
    "train_micro_batch_size_per_gpu": BATCH,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "torch_adam": True}},
    "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
    "zero_allow_untested_optimizer": True,
}
engine, *_ = deepspeed.initialize(model=model(), config=configuration)
losses = []
for inputs, wanted in batches():
    loss = (engine(inputs) - wanted).square().mean()
    engine.backward(loss)
    engine.step()
    losses.append(loss.item())
engine.destroy()
write(losses)
deepspeed.comm.destroy_process_group()
