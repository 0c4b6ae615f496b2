// Tries what the sandbox denies; returns which of it worked.
#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>

#include "contract.h"
LAUNCH {
  if (FILE* file = fopen(OUTSIDE, "w")) {
    fclose(file);
    return 31;
  }
  int connection = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(9);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(connection, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 || errno != EACCES)
    return 32;
  close(connection);
  if (kill(getppid(), 0) == 0) return 33;
  correct(x, bias, y);
  return 0;
}
