#include "native_api.hpp"

namespace isthmus::xccl {
std::string native_functions::load(const dynamic_library& library, const std::string& prefix,
                                   bool needs_abort) {
  symbol_loader loader(library, prefix);
  loader.need(get_version, "GetVersion");
  loader.need(get_unique_id, "GetUniqueId");
  loader.need(get_error_string, "GetErrorString");
  loader.need(get_last_error, "GetLastError");
  loader.need(comm_destroy, "CommDestroy");
  loader.need(comm_split, "CommSplit");
  loader.need(group_start, "GroupStart");
  loader.need(group_end, "GroupEnd");
#define NATIVE_COLLECTIVE(member, Name, parameters) loader.need(member, #Name);
#define NATIVE_EXTRA(member, Name, parameters) loader.want(member, #Name);
#include "native_collectives.def"
  if (all_to_all == nullptr) loader.want(all_to_all, "AllToAll");  // RCCL's and oneCCL's spelling
  if (needs_abort) {
    loader.need(comm_abort, "CommAbort");
    loader.need(comm_get_async_error, "CommGetAsyncError");
    loader.need(comm_count, "CommCount");
    loader.need(comm_user_rank, "CommUserRank");
    loader.want(comm_register, "CommRegister");
    loader.want(comm_deregister, "CommDeregister");
    loader.want(window_register, "CommWindowRegister");
    loader.want(window_deregister, "CommWindowDeregister");
  }
  return loader.missing();
}

std::string version_text(int version) {
  // NCCL: major*10000 + minor*100 + patch; releases up to 2.8 used major*1000.
  const int major = version >= 10000 ? version / 10000 : version / 1000;
  const int minor = version >= 10000 ? version % 10000 / 100 : version % 1000 / 100;
  return std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(version % 100);
}

}  // namespace isthmus::xccl
