// Adapter that presents the user's key-value store as a store of the core.
#pragma once

#include <isthmus/isthmus.h>

#include <memory>

#include "bootstrap/bootstrap.hpp"

namespace isthmus {

// Lifetime: `table` must outlive the store. Errors: INVALID_ARGUMENT if the table is incomplete.
std::shared_ptr<store> make_user_store(const isthmus_store_table* table);

}  // namespace isthmus
