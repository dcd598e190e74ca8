#include "memory/pool/umf_library.hpp"

#include "base/dynamic_library.hpp"

namespace isthmus {
namespace {

struct library_state {
  umf_library table{};
  std::string reason;

  library_state() {
    // The PyPI wheel installs it in <environment>/lib, two folders above site-packages. In a SYCL program it is
    // already loaded, and the dynamic linker finds it by name.
    const library_search_request request{.variable = "ISTHMUS_UMF_LIBRARY",
                                         .names = {"libumf.so.1"},
                                         .wheel_folders = {"../.."},
                                         .system_folders = {}};
    const dynamic_library library = dynamic_library::open(request, reason);
    if (!library) {
      reason = "UMF could not be loaded (pip install umf): " + reason;
      return;
    }
    symbol_loader loader(library, "umf");
#define ISTHMUS_UMF_FUNCTION(member, name) loader.load_required(table.member, #name);
#define ISTHMUS_UMF_OPTIONAL_FUNCTION(member, name) loader.load_optional(table.member, #name);
#include "memory/pool/umf_functions.def"
    table.path = library.path();
    if (!loader.first_missing().empty())
      reason = table.path + " lacks " + loader.first_missing() + " (install UMF 1.0 or newer)";
  }
};

}  // namespace

const umf_library* umf_library::get(std::string& reason) {
  static const library_state& instance_storage =
      *new library_state;  // never destroyed: blocks may be freed after static destruction
  reason = instance_storage.reason;
  return instance_storage.reason.empty() ? &instance_storage.table : nullptr;
}

}  // namespace isthmus
