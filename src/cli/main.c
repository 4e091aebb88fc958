#include <evenkeel.h>
#include <stdio.h>

int main(void)
{
    printf("evenkeel %s\n", ek_version());
    return 0;
}
