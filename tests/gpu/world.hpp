// The ranks of a GPU test, one for each GPU unless --ranks says otherwise (world/crew.hpp).
#pragma once

#include <memory>
#include <string>

#include "device.hpp"
#include "world/crew.hpp"

namespace gpu {

struct member : ::world::member {
  explicit member(const ::world::member& made)
      : ::world::member(made), queue(std::make_unique<stream>(made.device)) {}
  void enter() const { use_device(device); }
  void leave() const { queue->synchronize(); }

  std::unique_ptr<stream> queue;
};

using world = ::world::crew<member>;
inline std::string last_error() { return ::world::last_error_text(); }

}  // namespace gpu
