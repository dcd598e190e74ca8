// Whether a device may write memory that the caller of an engine allocated.
#pragma once

namespace isthmus::p2p {

// True for memory of which the driver says that device `peer`, which has peer access to device `owner`, can
// write it: plain allocations of `owner`, and mapped ones that were made accessible to `peer`. Memory of
// stream-ordered pools is not among them, nor is anything that the driver does not know. Costs less than a
// microsecond.
bool is_writable_by(const void* pointer, int owner, int peer);

}  // namespace isthmus::p2p
