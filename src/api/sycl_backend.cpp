// C entry point of the [sycl_backends] table, for front ends that need a device's platform before they
// create a communicator.
#include <isthmus/isthmus.h>
#include <isthmus/tools.h>

#include <string>

#include "base/error.hpp"
#include "selection/selection.hpp"

isthmus_status isthmus_sycl_backend_platform(const char* config_path, const char* name, int number,
                                             isthmus_platform* platform, int* is_found) {
  return isthmus::guard([&] {
    if (platform == nullptr || is_found == nullptr) {
      throw isthmus::make_error(ISTHMUS_ERROR_INVALID_ARGUMENT, ISTHMUS_HERE,
                                "sycl_backend_platform: platform and is_found must not be NULL",
                                "pass the address of a variable for each result");
    }
    *is_found = 0;
    const std::string number_text = std::to_string(number);
    for (const auto& [key, value] : isthmus::selection::load_configuration(config_path).sycl_backends) {
      if (key != number_text && (name == nullptr || key != name)) continue;
      *platform = value;
      *is_found = 1;
    }
  });
}
