// The caller's own key-value store behind the core's interface.
#pragma once

#include <isthmus/isthmus.h>

#include <memory>

#include "bootstrap/bootstrap.hpp"

namespace isthmus {

// Throws error (INVALID_ARGUMENT) for an incomplete table, which must outlive the store.
std::shared_ptr<store> make_user_store(const isthmus_store_table* table);

}  // namespace isthmus
