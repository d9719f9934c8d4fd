// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/daemon/server/command_line.hpp"

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <utility>

#include "bridge/daemon/server/config_file.hpp"
#include "bridge/protocol/printable.hpp"

namespace rnbd {
namespace {

constexpr const char* kDescription =
    "rnbd-server - exports files and block devices to RNBD clients\n"
    "\n"
    "Without --tls there is no authentication: whoever reaches a listening address may use every\n"
    "export.\n"
    "Without --listen it listens on 127.0.0.1, port 1234.\n";

constexpr const char* kExamples = R"(Examples:
  Export a disk image to programs of this machine:
    rnbd-server --export disk0=/srv/disk0.img

  A writable image, a read-only one and 64 MiB of memory, for a trusted network:
    rnbd-server --listen tcp:192.0.2.1:1234 --export disk0=/srv/disk0.img \
                --export iso=/srv/install.iso,ro --export scratch=memory:64M

  Encrypted, for a client that has the copy of its key:
    rnbd-ctl keygen host1 /etc/rnbd/keys.psk --out host1.psk
    rnbd-server --listen tcp:192.0.2.1:1234 --tls=require --tls-psk=/etc/rnbd/keys.psk \
                --export disk0=/srv/disk0.img,rw=host1

  Every file and block device below a directory, by its name:
    rnbd-server --search-path /srv/rnbd

  With a configuration file; the same, only to find its mistakes:
    rnbd-server --config /etc/rnbd-server.conf
    rnbd-server --config /etc/rnbd-server.conf --check-config

  Attach an export on a client, and look at it:
    nbdkit -r -U - rnbd rnbd+tcp://127.0.0.1:1234/disk0 --run 'nbdinfo "$uri"'

rnbd-server(8) and rnbd-server.conf(5) explain everything.)";

struct Arguments {
  std::vector<std::string> listen, advertise, exports;
  std::string config;
  bool check_config = false;
  int ready_fd = -1;
  std::vector<std::pair<const SettingRule*, std::string>> values;
};

/// Values are judged while they are parsed, so that the message names the option.
void add_options(CLI::App& app, Arguments& arguments) {
  app.add_option("-e,--export", arguments.exports,
                 "Export storage under a name: a file or block device, or memory:SIZE, null:SIZE, "
                 "nbd:URI, fault:OPTIONS:STORAGE, delay:OPTIONS:STORAGE. Behind commas: ro, "
                 "direct, rw=USER and ro=USER (who may use it), description=TEXT. May be repeated.")
      ->type_name("NAME=STORAGE[,OPTION]")
      ->allow_extra_args(false)
      ->take_all();
  app.add_option("-l,--listen", arguments.listen,
                 "Listen on tcp:HOST:PORT or rdma:HOST:PORT; IPv6 as tcp:[::1]:1234, port 0 = any "
                 "free one (default tcp:127.0.0.1:1234). May be repeated. Behind commas: "
                 "non-optimized (clients that know others use them first), tls=off|on|require.")
      ->type_name("ADDRESS")
      ->allow_extra_args(false)
      ->take_all();
  app.add_option("--advertise", arguments.advertise,
                 "Tell clients that they reach this server at tcp:HOST[:PORT] or rdma:HOST[:PORT], "
                 "too; those with paths=auto use it as a further path. May be repeated.")
      ->type_name("ADDRESS")
      ->allow_extra_args(false)
      ->take_all();
  app.add_option("-c,--config", arguments.config,
                 "Read a configuration file; options of the command line win over it.")
      ->type_name("FILE");
  app.add_flag("--check-config", arguments.check_config,
               "Check the configuration, open and close every export, and exit.");
  app.add_option("--ready-fd", arguments.ready_fd,
                 "Write one line to this file descriptor once ready, and close it.")
      ->type_name("N");
  for (const SettingRule& rule : setting_rules()) {
    const auto take = [&arguments, &rule](const std::string& value) {
      Settings scratch;
      const std::string wrong = rule.apply(scratch, value);
      if (!wrong.empty())
        throw CLI::ValidationError("--" + std::string{rule.key},
                                   wrong + "; write e.g. --" + rule.key + " " + rule.example);
      arguments.values.emplace_back(&rule, value);
    };
    const std::string name = "--" + std::string{rule.key};
    if (rule.value != nullptr) {
      app.add_option_function<std::string>(name, take, rule.help)->type_name(rule.value);
    } else {
      app.add_flag_callback(
          name, [take] { take("true"); }, rule.help);
    }
  }
}

/// The command line over the file's settings.
std::string apply(const Arguments& arguments, Settings& settings) {
  if (!arguments.listen.empty()) settings.listen.clear();
  for (const std::string& text : arguments.listen) {
    const auto address = parse_listen(text);
    if (!address) return "--listen " + address.error();
    settings.listen.push_back(*address);
  }
  if (!arguments.advertise.empty()) settings.directions.paths.clear();
  for (const std::string& text : arguments.advertise) {
    const std::string wrong = add_advertised(settings.directions, text);
    if (!wrong.empty()) return "--advertise " + wrong;
  }
  for (const std::string& text : arguments.exports) {
    auto specification = parse_export(text);
    if (!specification) return "--export " + specification.error();
    settings.exports.push_back(std::move(*specification));
  }
  for (const auto& [rule, value] : arguments.values) rule->apply(settings, value);
  return "";
}

}  // namespace

tl::expected<Invocation, EarlyExit> parse_command_line(int argc, const char* const* argv) {
  CLI::App app{kDescription, "rnbd-server"};
  Arguments arguments;
  add_options(app, arguments);
  if (auto early =
          parse_arguments(app, kExamples, "exports are given as --export NAME=PATH", argc, argv)) {
    return tl::unexpected(std::move(*early));
  }

  Invocation invocation;
  // The command line is judged before the file, so that its mistakes are usage errors.
  if (const std::string wrong = apply(arguments, invocation.settings); !wrong.empty())
    return tl::unexpected(usage_error(app, wrong));
  const std::string bad_fd = complaint_about_number_of_ready_fd(app, arguments.ready_fd);
  if (!bad_fd.empty()) return tl::unexpected(usage_error(app, bad_fd));
  if (!arguments.config.empty()) {
    auto loaded = load_config(arguments.config);
    if (!loaded && (!arguments.check_config || loaded.error().unreadable)) {
      std::string text;
      for (const auto& mistake : loaded.error().mistakes)
        text += "rnbd-server: " + on_one_line(mistake.text) + "\n";
      return tl::unexpected(EarlyExit{loaded.error().unreadable ? 1 : 2, text});
    }
    if (!loaded) invocation.mistakes = std::move(loaded.error().mistakes);
    invocation.settings = loaded ? std::move(*loaded) : std::move(loaded.error().rest);
    apply(arguments, invocation.settings);
  }
  invocation.words.assign(argv, argv + argc);
  invocation.config = arguments.config;
  invocation.check_config = arguments.check_config;
  invocation.ready_fd = arguments.ready_fd;
  return invocation;
}

}  // namespace rnbd
