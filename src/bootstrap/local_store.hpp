// The store of ranks that live in one process.
#pragma once

#include <memory>

#include "bootstrap/bootstrap.hpp"

namespace isthmus {

std::shared_ptr<store> make_local_store();

}  // namespace isthmus
