// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/daemon/server/service_rights.hpp"

#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <vector>

namespace rnbd {
namespace {

constexpr const char* kConfig = "/etc/rnbd-server.conf";
constexpr const char* kUnit = "rnbd-server.service";
constexpr const char* kUser = "rnbd";                    ///< unless the unit says another one
constexpr const char* kInUnit = "RNBD_CHECKED_IN_UNIT";  ///< set: the check was begun anew
/// The properties that decide which files a unit's program may open, and how.
constexpr const char* kShow =
    "systemctl show rnbd-server.service -p LoadState,User,Group,SupplementaryGroups,ProtectSystem,"
    "ProtectHome,PrivateTmp,PrivateDevices,DevicePolicy,DeviceAllow,ReadWritePaths,ReadOnlyPaths,"
    "InaccessiblePaths,BindPaths,BindReadOnlyPaths,RootDirectory,StateDirectory,StateDirectoryMode,"
    "WorkingDirectory";

/// Lines of KEY=VALUE; none: systemd does not answer, or the unit is not installed.
std::optional<std::vector<std::string>> properties_of_unit() {
  struct Close {
    void operator()(std::FILE* file) const { ::pclose(file); }
  };
  const std::unique_ptr<std::FILE, Close> pipe{::popen(kShow, "re")};
  if (pipe == nullptr) return std::nullopt;
  std::vector<std::string> properties;
  bool loaded = false;
  char* line = nullptr;
  std::size_t room = 0;
  while (::getline(&line, &room, pipe.get()) > 0) {
    std::string text{line};
    if (text.ends_with('\n')) text.pop_back();
    if (text == "LoadState=loaded") loaded = true;
    // Properties that are not set are those of systemd-run as well.
    if (!text.starts_with("LoadState=") && !text.ends_with('=')) properties.push_back(text);
  }
  std::free(line);
  return loaded ? std::optional{properties} : std::nullopt;
}

std::vector<std::string> own_arguments() {
  std::ifstream file{"/proc/self/cmdline", std::ios::binary};
  std::vector<std::string> arguments;
  for (std::string each; std::getline(file, each, '\0');) arguments.push_back(each);
  return arguments;
}

/// Returns only if that cannot be.
void begin_anew_in_sandbox() {
  const auto properties = properties_of_unit();
  std::error_code failed;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", failed);
  std::vector<std::string> arguments = own_arguments();
  if (!properties || failed || arguments.empty()) return;
  std::vector<std::string> command{"systemd-run", "--quiet",
                                   "--pipe",      "--wait",
                                   "--collect",   "--setenv=" + std::string{kInUnit} + "=1"};
  for (const std::string& each : *properties) command.push_back("--property=" + each);
  arguments[0] = program;
  command.push_back("--");
  command.insert(command.end(), arguments.begin(), arguments.end());
  std::vector<char*> words;
  for (std::string& word : command) words.push_back(word.data());
  words.push_back(nullptr);
  ::execvp(words[0], words.data());
}

std::string name_of_user() {
  const passwd* const user = ::getpwuid(::geteuid());
  return user != nullptr ? user->pw_name : std::to_string(::geteuid());
}

bool become(const passwd& user) {
  return ::initgroups(user.pw_name, user.pw_gid) == 0 && ::setgid(user.pw_gid) == 0 &&
         ::setuid(user.pw_uid) == 0;
}

bool may_read(const std::string& path) {
  return ::faccessat(AT_FDCWD, path.c_str(), R_OK, AT_EACCESS) == 0;
}

/// Without systemd there is no sandbox to be had.
Judge judge_as_user() {
  const std::string sandbox = std::string{"not in the sandbox of "} + kUnit +
                              " (ReadWritePaths=, ProtectHome=, DeviceAllow=)";
  const passwd* const user = ::getpwnam(kUser);
  if (user == nullptr) {
    return {"judged with the rights of root: the user " + std::string{kUser} + " of " + kUnit +
                " is not there yet, see systemd-sysusers",
            ""};
  }
  if (!become(*user)) {
    return {std::string{"judged with the rights of root: cannot become the user "} + kUser + ": " +
                std::strerror(errno),
            ""};
  }
  Judge judge{std::string{"judged with the rights of the user "} + kUser + ", but " + sandbox, ""};
  if (!may_read(kConfig)) {
    judge.mistake = std::string{kConfig} + ": the service's user " + kUser +
                    " may not read it; 'chgrp " + kUser + "' and 'chmod g+r' let it";
  }
  return judge;
}

}  // namespace

Judge judge_as_service(const std::string& config) {
  if (std::getenv(kInUnit) != nullptr) return {};
  std::error_code ignored;
  const bool of_service = std::filesystem::equivalent(config, kConfig, ignored);
  const std::string rights = "judged with the rights of the user " + name_of_user();
  if (!of_service) {
    return {rights + "; those of " + kUnit + " are judged when root has " + kConfig + " checked",
            ""};
  }
  if (::geteuid() != 0) {
    if (name_of_user() == kUser && std::getenv("INVOCATION_ID") != nullptr) return {};
    if (name_of_user() == kUser) return {rights + ", but not in the sandbox of " + kUnit, ""};
    return {rights + ", which are not those of " + kUnit + ": let root do it", ""};
  }
  if (std::filesystem::is_directory("/run/systemd/system", ignored)) begin_anew_in_sandbox();
  return judge_as_user();
}

}  // namespace rnbd
