// Mapped blocks of the GPU driver: they grow by mapping pages after their last one, and shrink
//   by unmapping pages.
#include "base/error.hpp"
#include "base/log.hpp"
#include "device/gpu/gpu_driver.hpp"

namespace isthmus::gpu {
namespace {

void* offset_pointer(void* base, std::uint64_t offset) { return static_cast<std::byte*>(base) + offset; }

}  // namespace

int gpu_driver::grant_access(void* address, std::span<const page_run> runs, int device) {
  const access_description access{{location_device, device}, access_read_write};
  int code = success;
  std::uint64_t offset = 0;
  for (const page_run& run : runs) {
    if (code == success) code = m_api->mem_set_access(offset_pointer(address, offset), run.bytes, &access, 1);
    offset += run.bytes;
  }
  return code;
}

// Maps all runs. On failure, maps no run and returns the error code.
int gpu_driver::map_runs(void* address, std::span<const page_run> runs, int device) {
  int code = success;
  std::uint64_t offset = 0;
  std::size_t mapped_runs = 0;
  for (; mapped_runs < runs.size(); ++mapped_runs) {
    code = m_api->mem_map(offset_pointer(address, offset), runs[mapped_runs].bytes, 0,
                          runs[mapped_runs].physical, 0);
    if (code != success) break;
    offset += runs[mapped_runs].bytes;
  }
  if (code == success) code = grant_access(address, runs, device);
  for (const auto& [accessor, owner] : m_peers)
    if (code == success && owner == device) code = grant_access(address, runs, accessor);
  if (code != success) (void)unmap_runs(address, runs.first(mapped_runs));
  return code;
}

int gpu_driver::unmap_runs(void* address, std::span<const page_run> runs) {
  int code = success;
  std::uint64_t offset = 0;
  for (const page_run& run : runs) {
    const int unmap_code = m_api->mem_unmap(offset_pointer(address, offset), run.bytes);
    if (code == success) code = unmap_code;
    offset += run.bytes;
  }
  return code;
}

// Maps the new pages after the existing ones. If the address range is too small, all pages are mapped to a new
// range with twice the required size. Physical memory can be mapped at two addresses, so the old mapping stays
// until the new one is complete.
void* gpu_driver::grow(void* pointer, mapped_block& block, std::uint64_t bytes) {
  const std::string action = fmt::format("growing a block from {} to {} bytes", block.bytes, bytes);
  const allocation_properties request = properties(block.device);
  page_run new_run{0, bytes - block.bytes};
  check(m_api->mem_create(&new_run.physical, new_run.bytes, &request, 0), ISTHMUS_HERE, action, block.device);
  const bool must_move = bytes > block.reserved;
  void* address = pointer;
  std::vector<page_run> runs = block.runs;
  runs.push_back(new_run);
  int code = must_move ? m_api->mem_reserve(&address, 2 * bytes, 0, nullptr, 0) : success;
  if (code == success) {
    code = must_move ? map_runs(address, runs, block.device)
                     : map_runs(offset_pointer(address, block.bytes), {&new_run, 1}, block.device);
    if (code != success && must_move) (void)m_api->mem_unreserve(address, 2 * bytes);
  }
  if (code != success) (void)m_api->mem_release(new_run.physical);
  check(code, ISTHMUS_HERE, action, block.device);
  if (must_move && pointer != nullptr) {
    code = unmap_runs(pointer, block.runs);
    if (code == success) code = m_api->mem_unreserve(pointer, block.reserved);
    if (code != success)  // the block itself remains valid
      log(log_level::warning, "{}: {}: cannot release {} bytes of addresses: {}", m_api->title(), action,
          block.reserved, m_api->text(code));
  }
  if (must_move) block.reserved = 2 * bytes;
  block.runs = std::move(runs);
  block.bytes = bytes;
  return address;
}

// Unmaps only complete runs. A partly used run stays mapped.
void gpu_driver::shrink(void* pointer, mapped_block& block, std::uint64_t bytes) {
  while (block.runs.size() > 1 && block.bytes - block.runs.back().bytes >= bytes) {
    const page_run last = block.runs.back();
    check(unmap_runs(offset_pointer(pointer, block.bytes - last.bytes), {&last, 1}), ISTHMUS_HERE,
          "unmapping pages", block.device);
    block.runs.pop_back();
    block.bytes -= last.bytes;
    check(m_api->mem_release(last.physical), ISTHMUS_HERE, "releasing pages", block.device);
  }
}

std::map<void*, gpu_driver::mapped_block>::iterator gpu_driver::find_mapped(int device, void* pointer,
                                                                            const char* location) {
  const auto entry = m_mapped.find(pointer);
  if (entry == m_mapped.end() || entry->second.device != device)
    throw make_error(
        ISTHMUS_ERROR_INVALID_ARGUMENT, location,
        fmt::format("{} is not a growable block of device {} of {}", pointer, device, m_api->title()),
        "pass a block of this device that allocate_mapped returned and that was not freed");
  return entry;
}

void* gpu_driver::allocate_mapped(int device, std::uint64_t bytes) {
  if (!m_api->has_virtual_memory(device)) return device_driver::allocate_mapped(device, bytes);
  const current_device current(*this, device);
  if (bytes > ~std::uint64_t{0} / 4)
    check(out_of_memory, ISTHMUS_HERE, fmt::format("allocating {} bytes", bytes), device);
  mapped_block block{device, 0, 0, {}};
  const std::uint64_t rounded_bytes = round_up(bytes, granularity(device));
  const std::lock_guard lock(m_mapped_mutex);
  void* const pointer = grow(nullptr, block, rounded_bytes);
  m_mapped.emplace(pointer, std::move(block));
  return pointer;
}

void* gpu_driver::resize_mapped(int device, void* pointer, std::uint64_t bytes) {
  const current_device current(*this, device);
  if (bytes > ~std::uint64_t{0} / 4)
    check(out_of_memory, ISTHMUS_HERE, fmt::format("growing a block to {} bytes", bytes), device);
  const std::uint64_t rounded_bytes = round_up(bytes, granularity(device));
  const std::lock_guard lock(m_mapped_mutex);
  const auto entry = find_mapped(device, pointer, ISTHMUS_HERE);
  mapped_block& block = entry->second;
  shrink(pointer, block, rounded_bytes);
  if (rounded_bytes <= block.bytes) return pointer;
  void* const address = grow(pointer, block, rounded_bytes);
  auto node = m_mapped.extract(entry);
  node.key() = address;
  m_mapped.insert(std::move(node));
  return address;
}

void gpu_driver::free_mapped(int device, void* pointer) {
  const current_device current(*this, device);
  const std::lock_guard lock(m_mapped_mutex);
  const auto entry = find_mapped(device, pointer, ISTHMUS_HERE);
  const mapped_block freed_block = std::move(entry->second);
  m_mapped.erase(entry);
  check(unmap_runs(pointer, freed_block.runs), ISTHMUS_HERE, "unmapping a block", device);
  check(m_api->mem_unreserve(pointer, freed_block.reserved), ISTHMUS_HERE, "releasing addresses", device);
  for (const page_run& run : freed_block.runs)
    check(m_api->mem_release(run.physical), ISTHMUS_HERE, "releasing pages", device);
}

}  // namespace isthmus::gpu
