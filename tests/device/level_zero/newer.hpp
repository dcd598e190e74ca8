// Declarations of Level Zero 1.6 to 1.14, which the headers of Debian 12 lack.
#pragma once

#include <level_zero/ze_api.h>

#include <cstdint>

namespace standin {

constexpr auto version_1_14 = static_cast<ze_api_version_t>(ZE_MAKE_VERSION(1, 14));
constexpr std::uint32_t in_order_flag = 1u << 1;  // ZE_COMMAND_QUEUE_FLAG_IN_ORDER
constexpr auto ip_version_type = static_cast<ze_structure_type_t>(0x1000f);

struct ip_version {  // ze_device_ip_version_ext_t
  ze_structure_type_t stype;
  const void* next;
  std::uint32_t version;
};
struct group_size {  // ze_group_size_t
  std::uint32_t x, y, z;
};

}  // namespace standin
