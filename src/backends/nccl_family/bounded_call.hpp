// Time limits for native calls that can block forever.
#pragma once

#include <chrono>
#include <functional>
#include <optional>

namespace isthmus::nccl_family {

// Runs `function` in a new thread and waits for its result until `timeout` expires or `is_canceled` (optional)
// returns true. Returns nothing if the call has not finished by then. The thread keeps running in that case, so
// `function` must own everything it uses. It must not throw.
std::optional<int> run_with_timeout(std::function<int()> function, std::chrono::duration<double> timeout,
                                    const std::function<bool()>& is_canceled = {});

// Polls until `is_done` returns true. Returns false if `timeout` expires or `is_canceled` returns true first.
bool wait_until(const std::function<bool()>& is_done, std::chrono::duration<double> timeout,
                const std::function<bool()>& is_canceled);

}  // namespace isthmus::nccl_family
