// A temporary configuration file. Lifetime: communicators read it during creation only.
#pragma once

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <string>

namespace bench {

class rules_file {
 public:
  explicit rules_file(const std::string& text) {
    const int file = mkstemp(m_path);  // an unpredictable name
    if (file < 0) throw std::runtime_error(std::string("mkstemp ") + m_path + " failed");
    close(file);
    std::ofstream(m_path) << text;
  }
  ~rules_file() { (void)std::remove(m_path); }
  rules_file(const rules_file&) = delete;
  rules_file& operator=(const rules_file&) = delete;

  const char* path() const { return m_path; }

 private:
  char m_path[sizeof "/tmp/isthmus-XXXXXX"] = "/tmp/isthmus-XXXXXX";
};

}  // namespace bench
