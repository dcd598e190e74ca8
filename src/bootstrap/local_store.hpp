// Store for ranks that all run in one process.
#pragma once

#include <memory>

#include "bootstrap/bootstrap.hpp"

namespace isthmus {

std::shared_ptr<store> make_local_store();

}  // namespace isthmus
