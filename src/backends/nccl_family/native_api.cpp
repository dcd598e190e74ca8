#include "native_api.hpp"

namespace isthmus::nccl_family {
std::string native_functions::load(const dynamic_library& library, const std::string& prefix,
                                   bool needs_abort) {
  symbol_loader loader(library, prefix);
  loader.load_required(get_version, "GetVersion");
  loader.load_required(get_unique_id, "GetUniqueId");
  loader.load_required(get_error_string, "GetErrorString");
  loader.load_required(get_last_error, "GetLastError");
  loader.load_required(comm_destroy, "CommDestroy");
  loader.load_required(comm_split, "CommSplit");
  loader.load_required(group_start, "GroupStart");
  loader.load_required(group_end, "GroupEnd");
#define NATIVE_COLLECTIVE(member, Name, parameters) loader.load_required(member, #Name);
#define NATIVE_OPTIONAL_COLLECTIVE(member, Name, parameters) loader.load_optional(member, #Name);
#include "native_collectives.def"
  if (all_to_all == nullptr) loader.load_optional(all_to_all, "AllToAll");  // the spelling of RCCL and oneCCL
  if (needs_abort) {
    loader.load_required(comm_abort, "CommAbort");
    loader.load_required(comm_get_async_error, "CommGetAsyncError");
    loader.load_required(comm_count, "CommCount");
    loader.load_required(comm_user_rank, "CommUserRank");
    loader.load_optional(comm_register, "CommRegister");
    loader.load_optional(comm_deregister, "CommDeregister");
    loader.load_optional(window_register, "CommWindowRegister");
    loader.load_optional(window_deregister, "CommWindowDeregister");
  }
  return loader.first_missing();
}

std::string format_version(int version) {
  // NCCL encodes versions as major*10000 + minor*100 + patch. Releases up to 2.8 used major*1000.
  const int major = version >= 10000 ? version / 10000 : version / 1000;
  const int minor = version >= 10000 ? version % 10000 / 100 : version % 1000 / 100;
  return std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(version % 100);
}

}  // namespace isthmus::nccl_family
