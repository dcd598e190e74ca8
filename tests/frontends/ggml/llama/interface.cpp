// Checks at compile time that the declarations of libisthmus_ggml.so match the headers of this ggml release.
// Unlike tensor fields, function types and context parameters cannot be determined at run time.
#include <cstddef>
#include <type_traits>

#include "frontends/ggml/ggml_library.hpp"
#include "ggml-backend.h"
#include "ggml.h"

namespace {

// The type with ggml's structures in place of the opaque ones.
template <typename Type>
struct as_ggml {
  using type = Type;
};
template <>
struct as_ggml<isthmus::ggml::ggml_backend> {
  using type = ggml_backend;
};
template <>
struct as_ggml<isthmus::ggml::ggml_tensor> {
  using type = ggml_tensor;
};
template <>
struct as_ggml<isthmus::ggml::ggml_registry> {
  using type = ggml_backend_reg;
};
template <typename Type>
struct as_ggml<Type*> {
  using type = typename as_ggml<Type>::type*;
};
template <typename Result, typename... Arguments>
struct as_ggml<Result(Arguments...)> {
  using type = typename as_ggml<Result>::type(typename as_ggml<Arguments>::type...);
};
template <typename Ours, typename Pointer>
constexpr bool is_same = std::is_same_v<typename as_ggml<Ours>::type*, Pointer>;

static_assert(is_same<isthmus::ggml::comm_init, ggml_backend_comm_init_t>);
static_assert(is_same<isthmus::ggml::comm_free, ggml_backend_comm_free_t>);
static_assert(is_same<isthmus::ggml::comm_allreduce, ggml_backend_comm_allreduce_tensor_t>);
static_assert(is_same<isthmus::ggml::proc_address_function, decltype(&ggml_backend_reg_get_proc_address)>);

using ours = isthmus::ggml::context_parameters;
static_assert(sizeof(ours) == sizeof(ggml_init_params));
static_assert(offsetof(ours, pool_bytes) == offsetof(ggml_init_params, mem_size));
static_assert(offsetof(ours, pool) == offsetof(ggml_init_params, mem_buffer));
static_assert(offsetof(ours, no_alloc) == offsetof(ggml_init_params, no_alloc));
static_assert(GGML_BACKEND_DEVICE_TYPE_CPU == 0);  // library::cpu_device

}  // namespace
