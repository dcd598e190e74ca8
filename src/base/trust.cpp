#include "base/trust.hpp"

#include <dlfcn.h>
#include <grp.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

// Plug-ins compile this file, too, so it takes nothing but the standard library.
namespace isthmus {
namespace {

struct trusted_parties {
  std::vector<uid_t> users{0, geteuid()};
  std::vector<gid_t> groups{0};
  bool everybody = false;

  bool user(uid_t id) const { return std::find(users.begin(), users.end(), id) != users.end(); }
  bool group(gid_t id) const { return std::find(groups.begin(), groups.end(), id) != groups.end(); }
};

std::string folder_of(const std::string& path) {
  const auto slash = path.rfind('/');
  return slash == 0 ? "/" : path.substr(0, slash);
}

std::string resolved(const std::string& path) {
  const std::unique_ptr<char, decltype(&std::free)> real(realpath(path.c_str(), nullptr), &std::free);
  return real == nullptr ? "" : real.get();
}

// Whoever can change the library that runs here is trusted with what it loads: nothing is gained by refusing.
trusted_parties trusted_here() {
  trusted_parties trusted;
  Dl_info self{};
  if (dladdr(reinterpret_cast<const void*>(&why_untrusted), &self) == 0 || self.dli_fname == nullptr)
    return trusted;
  const std::string file = resolved(self.dli_fname);
  if (file.empty()) return trusted;
  for (const std::string& part : {file, folder_of(file)}) {
    struct stat found{};
    if (stat(part.c_str(), &found) != 0) continue;
    trusted.users.push_back(found.st_uid);
    if ((found.st_mode & S_IWGRP) != 0) trusted.groups.push_back(found.st_gid);
    trusted.everybody |= (found.st_mode & S_IWOTH) != 0 && (found.st_mode & S_ISVTX) == 0;
  }
  return trusted;
}

// A group with the name of the owner and no other member, as many systems give to every user.
bool is_private_group(gid_t group, uid_t owner) {
  std::array<char, 16384> user_text, group_text;
  passwd user{}, *found_user = nullptr;
  struct group members{}, *found_group = nullptr;
  if (getpwuid_r(owner, &user, user_text.data(), user_text.size(), &found_user) != 0 || found_user == nullptr)
    return false;
  if (getgrgid_r(group, &members, group_text.data(), group_text.size(), &found_group) != 0 ||
      found_group == nullptr)
    return false;
  if (std::strcmp(user.pw_name, members.gr_name) != 0) return false;
  for (char** name = members.gr_mem; *name != nullptr; ++name)
    if (std::strcmp(*name, user.pw_name) != 0) return false;
  return true;
}

std::string describe(const std::string& part, const struct stat& found, const char* rule) {
  char text[256];
  std::snprintf(text, sizeof text, " has owner %u, group %u and mode %04o: ", found.st_uid, found.st_gid,
                static_cast<unsigned>(found.st_mode & 07777));
  char user[64];
  std::snprintf(user, sizeof user, " (this process is user %u)", geteuid());
  return part + text + rule + user;
}

// "" when nobody else can change this file or what lies in this folder.
std::string why_part_untrusted(const std::string& part, const trusted_parties& trusted) {
  struct stat found{};
  if (stat(part.c_str(), &found) != 0) return part + " can't be looked at: " + std::strerror(errno);
  if (!trusted.user(found.st_uid))
    return describe(part, found, "code is loaded only from files and folders that the user or root owns");
  if (S_ISDIR(found.st_mode) && (found.st_mode & S_ISVTX) != 0) return "";  // the parts in it are looked at
  constexpr const char* rule = "code is loaded only from where nobody but the user and root may write";
  if ((found.st_mode & S_IWOTH) != 0 && !trusted.everybody) return describe(part, found, rule);
  if ((found.st_mode & S_IWGRP) != 0 && !trusted.everybody && !trusted.group(found.st_gid) &&
      !is_private_group(found.st_gid, found.st_uid))
    return describe(part, found, rule);
  return "";
}

}  // namespace

std::string why_untrusted(const std::string& path) {
  std::string part = resolved(path);
  if (part.empty()) return path + " can't be looked at: " + std::strerror(errno);
  const trusted_parties trusted = trusted_here();
  while (true) {
    std::string reason = why_part_untrusted(part, trusted);
    if (!reason.empty() || part == "/") return reason;
    part = folder_of(part);
  }
}

std::string why_not_code(std::string& path) {
  if (path.empty() || path.front() != '/')
    return path + " is relative: code is never loaded through the working directory; give an absolute path";
  std::string reason = why_untrusted(path);
  if (reason.empty()) path = resolved(path);
  return reason;
}

}  // namespace isthmus
