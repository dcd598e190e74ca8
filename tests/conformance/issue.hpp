#pragma once

#include "rank_buffers.hpp"
#include "rank_runner.hpp"

namespace conformance {

// Makes the call on one rank, through its named function or, for odd seeds, through isthmus_enqueue. A ring of
// send and recv is one group, or, if `plain_pairs` is set, blocking calls in an order that cannot deadlock.
isthmus_status issue(const test_case& test, const oracle::operation_shape& shape, const rank_buffers& buffers,
                     const rank_member& member, bool plain_pairs);

// True if a ring can use blocking calls: every pair has an even and an odd rank.
bool can_be_plain_pairs(const oracle::operation_shape& shape);

// The operation descriptor of the call.
isthmus_operation operation_of(const test_case& test, const oracle::operation_shape& shape,
                               const placement& addresses, int rank);

}  // namespace conformance
