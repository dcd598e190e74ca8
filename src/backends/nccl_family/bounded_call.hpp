// Running a native call that may block for ever, without blocking for ever.
#pragma once

#include <chrono>
#include <functional>
#include <optional>

namespace isthmus::nccl_family {

// Runs `call` in a thread of its own and waits at most `timeout`, or until `cancelled` (may be empty) says
// so. Gives its result, or nothing when it has not come back: the thread then goes on alone, so `call`
// must own what it uses. `call` must not throw.
std::optional<int> run_with_timeout(std::function<int()> function, std::chrono::duration<double> timeout,
                               const std::function<bool()>& is_canceled = {});

// Waits until `done` returns true, at most `timeout`, or until `cancelled`. False when it gave up.
bool wait_until(const std::function<bool()>& is_done, std::chrono::duration<double> timeout,
                const std::function<bool()>& is_canceled);

}  // namespace isthmus::xccl
