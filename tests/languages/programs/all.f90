program conformance
  use iso_fortran_env, only: error_unit
  implicit none
  character(len=4096) :: name, word
  integer :: i
  call get_command_argument(1, name)
  select case (trim(name))
  case ("echo")
    do
      read (*, "(a)", iostat=i) word
      if (i /= 0) exit
      print "(a)", trim(word)
    end do
  case ("words")
    do i = 2, command_argument_count()
      call get_command_argument(i, word)
      print "(a)", trim(word)
    end do
  case ("text")
    print "(a)", "grüße 你好 🙂"
  case ("leave")
    stop 3, quiet=.true.
  case ("wait")
    do
      call execute_command_line("sleep 1")
    end do
  case ("spin")
    i = 0
    do while (i >= 0)
      i = mod(i + 1, 1000)
    end do
  case ("hog")
    call hog()
  case ("bomb")
    do
      call execute_command_line("sleep 60 &", exitstat=i)
      if (i /= 0) stop 1, quiet=.true.
    end do
  case ("flood")
    do i = 1, 100000
      print "(a)", "a line of output"
    end do
  case ("file")
    open (10, file="note.txt")
    write (10, "(a)") "kept"
    rewind (10)
    read (10, "(a)") word
    print "(a)", trim(word)
  end select
contains
  subroutine hog()
    type :: block
      character, pointer :: bytes(:)
    end type block
    type(block), allocatable :: held(:)
    integer :: n
    allocate (held(100000))
    do n = 1, 100000
      allocate (held(n)%bytes(1048576))
      held(n)%bytes = "x"
    end do
    print *, held(7)%bytes(7)
  end subroutine hog
end program conformance
