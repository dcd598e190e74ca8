// The stand-in's modules and kernels. Kernels are functions that the test defines, selected by name.
#include <algorithm>
#include <cstring>

#include "newer.hpp"
#include "standin.hpp"

struct _ze_module_handle_t {};
struct _ze_kernel_handle_t {
  std::string name;
  const standin::kernel_code* code;
  std::vector<std::vector<char>> arguments;
  standin::group_size group{1, 1, 1};
};

namespace standin {
namespace {

// The arguments are copied, because they may change after the call.
std::function<void()> launch(const kernel_code* code, std::vector<std::vector<char>> arguments,
                             const ze_group_count_t& groups, const group_size& group) {
  const std::uint64_t items = std::uint64_t{groups.groupCountX} * group.x;
  return [code, items, arguments = std::move(arguments)] {
    std::vector<void*> pointers;
    for (const auto& argument : arguments) pointers.push_back(const_cast<char*>(argument.data()));
    code->run(pointers.data(), items);
  };
}

}  // namespace

extern "C" ze_result_t ZE_APICALL zeModuleCreate(ze_context_handle_t, ze_device_handle_t,
                                                 const ze_module_desc_t*, ze_module_handle_t* module,
                                                 ze_module_build_log_handle_t* build_log) {
  const counted_call call(__func__);
  *module = new _ze_module_handle_t;
  if (build_log != nullptr) *build_log = nullptr;
  return ZE_RESULT_SUCCESS;
}

extern "C" ze_result_t ZE_APICALL zeModuleDestroy(ze_module_handle_t module) {
  const counted_call call(__func__);
  delete module;
  return ZE_RESULT_SUCCESS;
}

extern "C" ze_result_t ZE_APICALL zeModuleBuildLogDestroy(ze_module_build_log_handle_t) {
  const counted_call call(__func__);
  return ZE_RESULT_SUCCESS;
}

extern "C" ze_result_t ZE_APICALL zeModuleGetProperties(ze_module_handle_t,
                                                        ze_module_properties_t* properties) {
  const counted_call call(__func__);
  properties->flags = 0;
  return ZE_RESULT_SUCCESS;
}

// The runtime stores the binary in its cache. Any content will do.
extern "C" ze_result_t ZE_APICALL zeModuleGetNativeBinary(ze_module_handle_t, std::size_t* bytes,
                                                          std::uint8_t* binary) {
  const counted_call call(__func__);
  *bytes = 1;
  if (binary != nullptr) *binary = 0;
  return ZE_RESULT_SUCCESS;
}

extern "C" ze_result_t ZE_APICALL zeModuleGetKernelNames(ze_module_handle_t, std::uint32_t* count,
                                                         const char** names) {
  const counted_call call(__func__);
  const auto& kernels = call.state.kernels;
  if (names != nullptr)
    std::transform(kernels.begin(), kernels.end(), names,
                   [](const auto& entry) { return entry.first.c_str(); });
  *count = static_cast<std::uint32_t>(kernels.size());
  return ZE_RESULT_SUCCESS;
}

extern "C" ze_result_t ZE_APICALL zeKernelCreate(ze_module_handle_t, const ze_kernel_desc_t* description,
                                                 ze_kernel_handle_t* kernel) {
  const counted_call call(__func__);
  const auto code = call.state.kernels.find(description->pKernelName);
  if (code == call.state.kernels.end()) return ZE_RESULT_ERROR_INVALID_KERNEL_NAME;
  *kernel = new _ze_kernel_handle_t{code->first, &code->second, {}, {}};
  for (const std::size_t bytes : code->second.argument_bytes) (*kernel)->arguments.emplace_back(bytes);
  return ZE_RESULT_SUCCESS;
}

extern "C" ze_result_t ZE_APICALL zeKernelDestroy(ze_kernel_handle_t kernel) {
  const counted_call call(__func__);
  delete kernel;
  return ZE_RESULT_SUCCESS;
}

extern "C" ze_result_t ZE_APICALL zeKernelGetName(ze_kernel_handle_t kernel, std::size_t* bytes, char* name) {
  const counted_call call(__func__);
  if (name != nullptr) std::memcpy(name, kernel->name.c_str(), std::min(*bytes, kernel->name.size() + 1));
  *bytes = kernel->name.size() + 1;
  return ZE_RESULT_SUCCESS;
}

extern "C" ze_result_t ZE_APICALL zeKernelGetProperties(ze_kernel_handle_t kernel,
                                                        ze_kernel_properties_t* properties) {
  const counted_call call(__func__);
  properties->numKernelArgs = static_cast<std::uint32_t>(kernel->arguments.size());
  properties->requiredGroupSizeX = properties->requiredGroupSizeY = properties->requiredGroupSizeZ = 0;
  properties->maxSubgroupSize = 32;
  properties->maxNumSubgroups = 32;
  return ZE_RESULT_SUCCESS;
}

extern "C" ze_result_t ZE_APICALL zeKernelGetSourceAttributes(ze_kernel_handle_t, std::uint32_t* bytes,
                                                              char**) {
  const counted_call call(__func__);
  *bytes = 0;
  return ZE_RESULT_SUCCESS;
}

extern "C" ze_result_t ZE_APICALL zeKernelSetIndirectAccess(ze_kernel_handle_t,
                                                            ze_kernel_indirect_access_flags_t) {
  const counted_call call(__func__);
  return ZE_RESULT_SUCCESS;
}

extern "C" ze_result_t ZE_APICALL zeKernelSetGroupSize(ze_kernel_handle_t kernel, std::uint32_t x,
                                                       std::uint32_t y, std::uint32_t z) {
  const counted_call call(__func__);
  kernel->group = {x, y, z};
  return ZE_RESULT_SUCCESS;
}

extern "C" ze_result_t ZE_APICALL zeKernelSetArgumentValue(ze_kernel_handle_t kernel, std::uint32_t index,
                                                           std::size_t bytes, const void* value) {
  const counted_call call(__func__);
  if (index >= kernel->arguments.size()) return ZE_RESULT_ERROR_INVALID_KERNEL_ARGUMENT_INDEX;
  std::vector<char>& argument = kernel->arguments[index];
  if (bytes != argument.size()) return ZE_RESULT_ERROR_INVALID_KERNEL_ARGUMENT_SIZE;
  value != nullptr ? std::memcpy(argument.data(), value, bytes) : std::memset(argument.data(), 0, bytes);
  return ZE_RESULT_SUCCESS;
}

extern "C" ze_result_t ZE_APICALL zeCommandListAppendLaunchKernel(
    ze_command_list_handle_t list, ze_kernel_handle_t kernel, const ze_group_count_t* groups,
    ze_event_handle_t signals, std::uint32_t waits, ze_event_handle_t* events) {
  const counted_call call(__func__);
  return call.state.append(list, false, launch(kernel->code, kernel->arguments, *groups, kernel->group),
                           signals, waits, events);
}

// Level Zero 1.14.
extern "C" ZE_DLLEXPORT ze_result_t ZE_APICALL zeCommandListAppendLaunchKernelWithArguments(
    ze_command_list_handle_t list, ze_kernel_handle_t kernel, ze_group_count_t groups, group_size group,
    void** values, const void*, ze_event_handle_t signals, std::uint32_t waits, ze_event_handle_t* events) {
  const counted_call call(__func__);
  std::vector<std::vector<char>> arguments = kernel->arguments;
  for (std::size_t i = 0; i < arguments.size(); ++i)
    std::memcpy(arguments[i].data(), values[i], arguments[i].size());
  return call.state.append(list, false, launch(kernel->code, std::move(arguments), groups, group), signals,
                           waits, events);
}

}  // namespace standin
