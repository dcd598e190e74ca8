#include "fused/cublaslt.hpp"

#include <memory>
#include <mutex>

#include "runtime/dynamic_library.hpp"

namespace isthmus::fused {

const cublaslt* cublaslt::get(const char* option, std::string& reason) {
  static std::mutex mutex;
  static std::unique_ptr<cublaslt> loaded;
  const std::lock_guard lock(mutex);
  if (loaded == nullptr) {
    auto fresh = std::make_unique<cublaslt>();
    reason = fresh->load(option);
    if (reason.empty()) loaded = std::move(fresh);
  }
  return loaded.get();
}

std::string cublaslt::load(const char* option) {
  search_request search;
  search.option = option;
  search.variable = "ISTHMUS_CUBLASLT_LIBRARY";
  search.names = {"libcublasLt.so.13", "libcublasLt.so.12"};
  search.wheel_folders = {"nvidia/cu13/lib", "nvidia/cublas/lib"};
  search.system_folders = {"/usr/local/cuda/lib64"};
  std::string reason;
  const dynamic_library library = dynamic_library::open(search, reason);
  if (!library) return "no cuBLASLt library could be loaded: " + reason;
  path = library.path();
  symbol_loader loader(library, "cublasLt");
  loader.need(get_version, "GetVersion");
  loader.need(get_status_name, "GetStatusName");
  loader.need(create, "Create");
  loader.need(destroy, "Destroy");
  loader.need(desc_create, "MatmulDescCreate");
  loader.need(desc_destroy, "MatmulDescDestroy");
  loader.need(desc_set, "MatmulDescSetAttribute");
  loader.need(layout_create, "MatrixLayoutCreate");
  loader.need(layout_destroy, "MatrixLayoutDestroy");
  loader.need(preference_create, "MatmulPreferenceCreate");
  loader.need(preference_destroy, "MatmulPreferenceDestroy");
  loader.need(preference_set, "MatmulPreferenceSetAttribute");
  loader.need(heuristic, "MatmulAlgoGetHeuristic");
  loader.need(matmul, "Matmul");
  return loader.missing().empty() ? "" : path + " lacks " + loader.missing();
}

}  // namespace isthmus::fused
