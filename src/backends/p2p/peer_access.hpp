// Checks whether a peer device can write memory that the application allocated.
#pragma once

namespace isthmus::p2p {

// Returns true if the driver reports that device `peer`, which has peer access to device `owner`, can write
// `pointer`. This holds for plain allocations of `owner` and for mapped allocations that were made accessible
// to `peer`. It does not hold for stream-ordered pools or for memory unknown to the driver. The check takes
// less than a microsecond.
bool is_writable_by(const void* pointer, int owner, int peer);

}  // namespace isthmus::p2p
