// Collectives by the devices' copy engines: no kernel runs on the compute units for what goes to peers; only
// reduce_scatter has one, for the sums.
#pragma once

#include <isthmus/backend.h>

namespace isthmus {

// Asynchronous, for devices of one machine whose memory the others can map; built in, because all it needs
// is the platform's driver, which is found at run time.
const isthmus_backend* copy_engine_backend() noexcept;

}  // namespace isthmus
